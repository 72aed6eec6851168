//! The lines above the table: which ranks, where, on what.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::ranks::Rank;

/// Where a rank runs, as it tells the first rank.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Place {
    pid: u32,
    host: String,
    device: String,
    name: String,
}

/// Every rank's place. Collective.
pub(crate) fn devices(rank: &Rank) -> Result<Vec<Place>> {
    let device = rank.communicator.device();
    let mine = Place {
        pid: std::process::id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        device: format!("{device:?}"),
        name: device.name(),
    };
    let all = rank.communicator.bootstrap().all_gather(&serde_json::to_vec(&mine)?)?;
    all.iter().map(|place| Ok(serde_json::from_slice(place)?)).collect()
}

/// The lines for a run of `what`.
pub(crate) fn lines(rank: &Rank, what: &str, places: &[Place]) -> String {
    let mut lines = vec![format!(
        "# mscclrs {} bench {what}, {} {} as {}",
        env!("CARGO_PKG_VERSION"),
        places.len(),
        if places.len() == 1 { "rank" } else { "ranks" },
        rank.form
    )];
    for (rank, place) in places.iter().enumerate() {
        let Place { pid, host, device, name } = place;
        lines.push(format!("#  Rank {rank:>3} Pid {pid:>7} on {host} device {device} [{name}]"));
    }
    lines.join("\n")
}
