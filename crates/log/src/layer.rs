//! The log as a layer of tracing's subscribers.

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use crate::line::{Speaker, line};
use crate::sink::Sink;
use crate::values::Values;
use crate::{Format, Level, OpenError, Settings, Subsystem, Subsystems};

/// A log as a layer, for a program that has a subscriber of its own; [`install`](crate::install) is for
/// one that has none. Opens the file, where there is one. What other layers show is not changed.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(
    settings: Settings,
) -> Result<impl Layer<S>, OpenError> {
    let host = host_name();
    let sink = Sink::new(settings.file.clone(), &host, settings.rank)?;
    let chosen = Chosen {
        level: settings.level,
        subsystems: settings.subsystems,
        plain_warnings: settings.plain_warnings,
    };
    let log = Log { chosen, format: settings.format, rank: settings.rank, host, sink };
    Ok(log.with_filter(chosen))
}

struct Log {
    chosen: Chosen,
    format: Format,
    rank: Option<u32>,
    host: String,
    sink: Sink,
}

/// Which events the log is for.
#[derive(Clone, Copy)]
struct Chosen {
    level: Level,
    subsystems: Subsystems,
    plain_warnings: bool,
}

impl Chosen {
    /// The subsystem of what the log shows.
    fn shown(&self, metadata: &Metadata<'_>) -> Option<Subsystem> {
        let subsystem = Subsystem::of(metadata.target())?;
        let shown = *metadata.level() <= self.level.filter() && self.subsystems.contains(subsystem);
        shown.then_some(subsystem)
    }

    /// Whether this is a warning that is told plainly.
    fn is_told_plainly(&self, metadata: &Metadata<'_>) -> bool {
        self.plain_warnings
            && *metadata.level() == tracing::Level::WARN
            && Subsystem::of(metadata.target()).is_some()
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        match metadata.is_span() {
            true => metadata.target() == crate::target::SPAN,
            false => self.shown(metadata).is_some() || self.is_told_plainly(metadata),
        }
    }
}

impl<S> Filter<S> for Chosen {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.wants(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let plain = if self.plain_warnings { Level::Warn } else { Level::Off };
        Some(self.level.max(plain).filter())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut values = Values::default();
        attributes.record(&mut values);
        span.extensions_mut().insert(values);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(values) = span.extensions_mut().get_mut::<Values>() {
            record.record(values);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let shown = self.chosen.shown(metadata);
        let plainly = self.chosen.is_told_plainly(metadata);
        let mut values = Values::default();
        event.record(&mut values);
        if plainly {
            Sink::StandardError.write(&format!("{}\n", values.message), None);
        }
        let Some(subsystem) = shown else { return };
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Values>() {
                values.under(outer);
            }
        }
        let rank = values.rank.or(self.rank.map(u64::from));
        let speaker = Speaker { host: &self.host, process: std::process::id(), rank };
        let line = line(self.format, speaker, *metadata.level(), subsystem, &values);
        // A process that is one rank has one file, whatever its communicators number their ranks.
        let file = self.rank.or(rank.and_then(|rank| rank.try_into().ok()));
        self.sink.write(&line, file);
    }
}

/// Up to the first dot.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}
