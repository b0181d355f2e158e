//! The picture of a cache-size sweep: the hits of each policy in caches of each size, beside the
//! best possible hits.

use super::plot::{COLOURS, Drawn};
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Policies in the order of the legend. The last two know the future.
const POLICIES: [&str; 5] = ["lru", "s3-fifo", "gdsf", "belady", "bound"];
/// The values of a line that have a panel each.
const COLUMNS: [(&str, &str); 2] = [("hit_ratio", "files found"), ("byte_hit_ratio", "bytes found")];

/// Profile, then policy: (bytes of the cache, ratio).
type Panels = BTreeMap<String, BTreeMap<String, Vec<(f64, f64)>>>;

fn panels(lines: &[Value], field: &str) -> Panels {
    let mut all = Panels::new();
    for line in lines {
        let words = (line["profile"].as_str(), line["policy"].as_str());
        let numbers = (line["cache_bytes"].as_f64(), line[field].as_f64());
        if let ((Some(profile), Some(policy)), (Some(bytes), Some(ratio))) = (words, numbers) {
            let curve = all.entry(profile.to_string()).or_default().entry(policy.to_string()).or_default();
            curve.push((bytes, ratio));
        }
    }
    all.values_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(|curve| curve.sort_by(|a, b| a.0.total_cmp(&b.0)));
    all
}

/// Draws a row for each profile.
pub fn draw(file: &Path, lines: &[Value]) -> Drawn {
    let columns: Vec<(Panels, &str)> =
        COLUMNS.iter().map(|(field, title)| (panels(lines, field), *title)).collect();
    let profiles: Vec<String> = columns[0].0.keys().cloned().collect();
    if profiles.is_empty() {
        return Err("no results of a sweep".into());
    }
    let area = SVGBackend::new(file, (1080, 60 + 320 * profiles.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled("What caches of each size find", ("sans-serif", 22))?;
    let mut places = area.split_evenly((profiles.len(), columns.len())).into_iter();
    for (row, profile) in profiles.iter().enumerate() {
        for (column, (panels, title)) in columns.iter().enumerate() {
            if let (Some(place), Some(curves)) = (places.next(), panels.get(profile)) {
                panel(&place, &format!("{profile}: {title}"), curves, row == 0 && column == 0)?;
            }
        }
    }
    area.present()?;
    Ok(())
}

fn bytes(n: f64) -> String {
    let (unit, name) =
        [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")].into_iter().find(|(u, _)| n >= *u).unwrap_or((1.0, "B"));
    format!("{:.0} {name}", n / unit)
}

fn panel(
    place: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    curves: &BTreeMap<String, Vec<(f64, f64)>>,
    legend: bool,
) -> Drawn {
    let sizes = || curves.values().flatten().map(|p| p.0);
    let (least, most) = (sizes().fold(f64::MAX, f64::min), sizes().fold(1.0, f64::max));
    let mut chart = ChartBuilder::on(place)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(46)
        .build_cartesian_2d((least..most).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("cache size")
        .x_label_formatter(&|x| bytes(*x))
        .y_label_formatter(&|y| format!("{:.0} %", y * 100.0))
        .light_line_style(WHITE)
        .draw()?;
    for (i, policy) in POLICIES.iter().enumerate() {
        let Some(points) = curves.get(*policy) else { continue };
        let c = if *policy == "bound" { BLACK } else { COLOURS[i % COLOURS.len()] };
        chart
            .draw_series(LineSeries::new(points.iter().copied(), c.stroke_width(2)).point_size(3))?
            .label(*policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], c.stroke_width(2)));
    }
    if legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn picture_shows_profiles_and_policies() {
        let mut lines = Vec::new();
        for policy in POLICIES {
            for (profile, size) in
                [("zipf", 1e6), ("zipf", 1e9), ("interspersed", 5e3), ("interspersed", 5e6)]
            {
                lines.push(
                    json!({"profile": profile, "policy": policy, "cache_bytes": size, "hit_ratio": 0.5,
                                  "byte_hit_ratio": 0.25}),
                );
            }
        }
        let file = std::env::temp_dir().join(format!("hither-sweep-{}.svg", std::process::id()));
        draw(&file, &lines).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        for word in POLICIES.into_iter().chain(["zipf: files found", "interspersed: bytes found"]) {
            assert!(svg.contains(word), "{word}");
        }
        assert!(draw(&file, &[]).is_err());
        std::fs::remove_file(file).unwrap();
    }
}
