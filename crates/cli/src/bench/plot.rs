//! Time and bus bandwidth over size, both axes logarithmic, as an SVG.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::bench::row::Row;
use crate::bench::sizes::format_size;

/// Colours that differ in lightness too, for readers who see no hues.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];

type Curve = (String, Vec<(f64, f64, f64)>);

/// A drawing of the rows, one curve for each implementation, type, operation and form.
pub(crate) fn draw(rows: &[Row]) -> Result<String> {
    let curves = curves(rows);
    let mut text = String::new();
    let drawn = (|| -> Result<()> {
        let root = SVGBackend::with_string(&mut text, (1280, 560)).into_drawing_area();
        root.fill(&WHITE).map_err(wrap)?;
        let first = rows.first();
        let title = first.map_or(String::new(), |row| {
            let graph = match row.graph {
                0 => String::new(),
                operations => format!(", graphs of {operations}"),
            };
            format!("{}, {} ranks, {}{graph}", row.op, row.ranks, row.device)
        });
        let root = root.titled(&title, ("sans-serif", 20)).map_err(wrap)?;
        let (left, right) = root.split_horizontally(640);
        chart(&left, "time in us", &curves, |point| point.1)?;
        chart(&right, "bus bandwidth in GB/s", &curves, |point| point.2)?;
        root.present().map_err(wrap)
    })();
    drawn.context("the drawing failed")?;
    Ok(text)
}

/// The error of a drawing borrows the area that it was drawn on.
fn wrap(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

fn curves(rows: &[Row]) -> Vec<Curve> {
    // Algorithms change with the size; ours is one curve. Others have one name at all sizes.
    let others: Vec<_> = rows.iter().filter(|row| row.is_other()).collect();
    let many_types = rows.iter().any(|row| row.dtype != rows[0].dtype);
    let many_ops = rows.iter().any(|row| row.redop != rows[0].redop);
    let mut curves = BTreeMap::<String, Vec<(f64, f64, f64)>>::new();
    for row in rows {
        // A logarithmic axis has no zero.
        if row.bytes == 0 || row.time_us <= 0.0 {
            continue;
        }
        let mut name = String::new();
        if !others.is_empty() {
            name += if row.is_other() { &row.algorithm } else { "mscclrs" };
            name += " ";
        }
        if many_types {
            name += &format!("{} ", row.dtype);
        }
        if many_ops {
            name += &format!("{} ", row.redop);
        }
        name += if row.in_place { "in place" } else { "out of place" };
        curves.entry(name).or_default().push((row.bytes as f64, row.time_us, row.busbw_gbps));
    }
    curves.into_iter().collect()
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    what: &str,
    curves: &[Curve],
    value: impl Fn(&(f64, f64, f64)) -> f64,
) -> Result<()> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let x = range(points().map(|point| point.0), 2.0);
    let y = range(points().map(&value).filter(|&value| value > 0.0), 10.0);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .margin_right(28)
        .caption(what, ("sans-serif", 16))
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())
        .map_err(wrap)?;
    chart
        .configure_mesh()
        .x_desc("size in bytes")
        .x_label_formatter(&|bytes| format_size(bytes.round() as u64))
        .y_label_formatter(&|value| label(*value))
        .light_line_style(RGBColor(240, 240, 240))
        .draw()
        .map_err(wrap)?;
    for ((name, points), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let line: Vec<_> = points
            .iter()
            .map(|point| (point.0, value(point)))
            .filter(|point| point.1 > 0.0)
            .collect();
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))
            .map_err(wrap)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    if !curves.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()
            .map_err(wrap)?;
    }
    Ok(())
}

/// From the power of `base` below the smallest value to the one above the largest.
fn range(values: impl Iterator<Item = f64>, base: f64) -> Range<f64> {
    let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| {
        (least.min(value), most.max(value))
    });
    if most <= 0.0 {
        return 1.0..base;
    }
    let from = base.powf(least.log(base).floor());
    let to = base.powf(most.log(base).ceil());
    from..if to > from { to } else { from * base }
}

fn label(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" { format!("{value:e}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::tests::row;

    #[test]
    fn drawing_holds_both_charts_and_every_curve() {
        let rows: Vec<_> = (3..20)
            .flat_map(|power| [false, true].map(|form| row(1 << power, form, f64::from(power * 9))))
            .collect();
        let text = draw(&rows).expect("drawn");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for word in ["time in us", "bus bandwidth in GB/s", "in place", "out of place", "32K"] {
            assert!(text.contains(word), "{word}");
        }
    }

    #[test]
    fn nothing_to_draw_is_an_empty_drawing() {
        for rows in [&[][..], &[row(0, true, 0.0)]] {
            assert!(draw(rows).expect("drawn").starts_with("<svg"));
        }
    }

    #[test]
    fn axes_end_at_powers() {
        assert_eq!(range([3.0, 90.0].into_iter(), 10.0), 1.0..100.0);
        assert_eq!(range([4.0, 4.0].into_iter(), 2.0), 4.0..8.0);
    }
}
