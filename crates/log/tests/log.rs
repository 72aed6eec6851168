//! A log as a layer: what it shows of events and spans.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use mscclrs_log::{Format, Level, Settings, Subsystem, Subsystems, layer};
use tracing_subscriber::layer::SubscriberExt;

/// What the log's file says after `body`.
fn logged(settings: Settings, body: impl FnOnce()) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("log");
    let file = Some(path.to_str().unwrap().parse().unwrap());
    let log = layer(Settings { file, ..settings }).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(log), body);
    std::fs::read_to_string(path).unwrap()
}

/// Lines without host and process.
fn said(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split_once(' ').unwrap().1).collect()
}

fn one_of_each() {
    mscclrs_log::error!(LIVENESS, "an error");
    mscclrs_log::warn!(BOOTSTRAP, "a warning");
    mscclrs_log::info!(INIT, "a step");
    mscclrs_log::debug!(MEMORY, "a detail");
    mscclrs_log::trace!(CONN, "a message");
}

#[test]
fn a_level_shows_what_is_as_urgent_and_more() {
    let levels = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
    for (count, level) in levels.into_iter().enumerate() {
        let text = logged(Settings { level, ..Settings::default() }, one_of_each);
        assert_eq!(text.lines().count(), count, "{level:?}: {text}");
    }
}

#[test]
fn only_chosen_subsystems_are_shown() {
    let settings = |list: &str| Settings {
        level: Level::Trace,
        subsystems: list.parse().unwrap(),
        ..Settings::default()
    };
    assert_eq!(
        said(&logged(settings("MEMORY,INIT"), one_of_each)),
        ["[-] INFO INIT a step", "[-] DEBUG MEMORY a detail"]
    );
    assert_eq!(
        said(&logged(settings("^INIT,CONN,MEMORY"), one_of_each)),
        ["[-] ERROR LIVENESS an error", "[-] WARN BOOTSTRAP a warning"]
    );
}

#[test]
fn events_of_other_crates_are_not_shown() {
    let settings = Settings { level: Level::Trace, ..Settings::default() };
    assert_eq!(logged(settings, || tracing::error!("of somebody else")), "");
}

#[test]
fn other_layers_of_a_program_still_see_everything() {
    struct Count(std::sync::Arc<std::sync::atomic::AtomicU32>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Count {
        fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let count = Count(Default::default());
    let seen = count.0.clone();
    let log = layer(Settings { level: Level::Off, ..Settings::default() }).unwrap();
    let subscriber = tracing_subscriber::registry().with(log).with(count);
    tracing::subscriber::with_default(subscriber, || {
        one_of_each();
        tracing::trace!("of somebody else");
    });
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 6);
}

#[test]
fn fields_of_spans_around_are_shown_and_the_nearest_counts() {
    let settings = Settings { level: Level::Info, rank: Some(9), ..Settings::default() };
    let text = logged(settings, || {
        mscclrs_log::info!(INIT, "before");
        let _outer = mscclrs_log::during!("outer", rank = 1u32, communicator = "c", call = "outer");
        mscclrs_log::info!(MEMORY, bytes = 7u64, "inside");
        {
            let _inner = mscclrs_log::during!("inner", call = "inner");
            mscclrs_log::info!(CONN, rank = 2u32, peer = 3u32, "deeper");
        }
        mscclrs_log::info!(CONN, "again");
    });
    assert_eq!(
        said(&text),
        [
            "[9] INFO INIT before",
            "[1] INFO MEMORY inside bytes=7 communicator=c call=outer",
            "[2] INFO CONN deeper peer=3 call=inner communicator=c",
            "[1] INFO CONN again communicator=c call=outer",
        ]
    );
}

#[test]
fn lines_of_many_threads_and_files_are_whole() {
    const WRITERS: usize = 8;
    const LINES: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    // Each writer has the file open for itself, as ranks that are processes do.
    std::thread::scope(|scope| {
        for rank in 0..WRITERS {
            let file = Some(path.to_str().unwrap().parse().unwrap());
            scope.spawn(move || {
                let settings = Settings { file, format: Format::Json, ..Settings::default() };
                let subscriber = tracing_subscriber::registry().with(layer(settings).unwrap());
                // Longer than a page of memory.
                let long = "x".repeat(5000 + rank);
                tracing::subscriber::with_default(subscriber, || {
                    for line in 0..LINES {
                        mscclrs_log::warn!(CONN, rank, line, long, "a long line");
                    }
                });
            });
        }
    });
    let text = std::fs::read_to_string(path).unwrap();
    let mut seen = vec![0u64; WRITERS];
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a whole line");
        let rank = line["rank"].as_u64().unwrap() as usize;
        assert_eq!(line["fields"]["line"], seen[rank]);
        assert_eq!(line["fields"]["long"].as_str().map(str::len), Some(5000 + rank));
        seen[rank] += 1;
    }
    assert_eq!(seen, vec![LINES as u64; WRITERS]);
}

#[test]
fn every_subsystem_can_be_chosen_alone() {
    for subsystem in Subsystem::ALL {
        let alone: Subsystems = subsystem.name().parse().unwrap();
        let count = Subsystem::ALL.iter().filter(|other| alone.contains(**other)).count();
        assert!(count == 1 && alone.contains(*subsystem));
    }
}
