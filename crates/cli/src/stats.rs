//! Order statistics of samples.

/// The value below which `percent` of the samples lie, interpolated; 0 without samples.
pub(crate) fn percentile(samples: &[f64], percent: u32) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = last as f64 * f64::from(percent.min(100)) / 100.0;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// The middle sample, or the mean of the two in the middle.
pub(crate) fn median(samples: &[f64]) -> f64 {
    percentile(samples, 50)
}

/// Bandwidth in GB/s (10^9 bytes a second) of `bytes` in `time_us` microseconds.
pub(crate) fn bandwidth(bytes: u64, time_us: f64) -> f64 {
    if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 }
}

/// A value with six digits, as many as a measurement has: the clock of GPUs gives hardly more.
pub(crate) fn figure(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_takes_the_middle_of_unsorted_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn percentiles_reach_both_ends() {
        let samples: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(percentile(&samples, 0), 0.0);
        assert_eq!(percentile(&samples, 90), 9.0);
        assert_eq!(percentile(&samples, 100), 10.0);
    }

    #[test]
    fn figures_have_six_digits() {
        for (value, figure_of_it) in [
            (2.2016000002622604, 2.2016),
            (0.000193643569946, 0.000193644),
            (1_234_567.8, 1_234_570.0),
            (-0.1 - 0.2, -0.3),
            (0.0, 0.0),
            (f64::MAX, 1.79769e308),
        ] {
            assert_eq!(figure(value), figure_of_it, "{value}");
        }
        assert!(figure(f64::NAN).is_nan());
    }

    #[test]
    fn bandwidth_counts_billions_of_bytes_a_second() {
        assert_eq!(bandwidth(1_000_000, 10.0), 100.0);
        assert_eq!(bandwidth(8, 0.0), 0.0);
    }
}
