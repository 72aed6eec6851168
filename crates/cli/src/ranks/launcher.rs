//! This process as one rank of a launcher's, which may be this program itself.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use mscclrs_core::bootstrap::{Config, InterfaceFilter, Rendezvous, TcpBootstrap, UniqueId};
use mscclrs_core::env::{self, Variable};
use mscclrs_core::{Error, LaunchEnvironment, RendezvousError};

use super::{Plan, Rank, Verdict, print_failure, set_up_limit, started, status};
use crate::usage::usage;

/// Where the ranks that this program starts meet: a unique id, for their eyes only.
static ID: &Variable = &env::internal::BENCH_RENDEZVOUS;

/// Runs `body` as the rank that the launcher says.
pub(super) fn run(
    plan: &Plan,
    launch: &LaunchEnvironment,
    body: &(dyn Fn(&Rank) -> Result<Verdict> + Sync),
) -> ExitCode {
    let own = own_rendezvous();
    let together = own.is_some();
    let end = join(plan, launch, own).and_then(|rank| rank.run(body));
    match end {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            print_failure(launch.rank, &error, together);
            ExitCode::from(status(&error))
        }
    }
}

/// Where this rank meets others, if this program started it.
fn own_rendezvous() -> Option<String> {
    ID.text().filter(|_| started::is_by_parent())
}

fn join(plan: &Plan, launch: &LaunchEnvironment, own: Option<String>) -> Result<Rank> {
    let form = if own.is_some() { "processes" } else { "a launcher's processes" };
    let rendezvous: Rendezvous = match (own, &launch.rendezvous) {
        (Some(id), _) => id.parse::<UniqueId>()?.into(),
        (None, Some(address)) => address.clone().into(),
        (None, None) => {
            return Err(usage!(
                "{} does not say where ranks meet; allowed is MSCCLRS_ADDRESS=host:port, the same on \
                 every rank",
                launch.launcher
            ));
        }
    };
    let config = Config {
        timeout: Some(set_up_limit()?),
        ..Config::new(launch.rank, launch.world_size, rendezvous)
    };
    let bootstrap = TcpBootstrap::new(config).map_err(sort)?;
    let device = plan.device(launch.local_rank.unwrap_or(launch.rank))?;
    Rank::new(Arc::new(bootstrap), device, form)
}

/// A mistake in what the launcher or the environment says is told from a failure.
fn sort(error: Error) -> anyhow::Error {
    match error {
        Error::Address { .. }
        | Error::Environment { .. }
        | Error::EnvironmentMissing { .. }
        | Error::Insecure { .. }
        | Error::NoInterface { .. }
        | Error::SecretRefused { .. }
        | Error::Rendezvous(
            RendezvousError::BuildMismatch { .. }
            | RendezvousError::DuplicateRank { .. }
            | RendezvousError::RankOutOfRange { .. }
            | RendezvousError::WorldSizeMismatch { .. },
        )
        | Error::UnknownHost { .. } => usage!("{error}"),
        other => other.into(),
    }
}

/// Serves a rendezvous on this host, and gives the environment of each rank that takes part in it.
pub(super) fn serve(ranks: u32) -> Result<impl Fn(u32) -> Vec<(&'static str, String)>> {
    let id = UniqueId::create(&"=lo".parse::<InterfaceFilter>()?)?.to_string();
    Ok(move |rank: u32| {
        vec![
            ("MSCCLRS_RANK", rank.to_string()),
            ("MSCCLRS_WORLD_SIZE", ranks.to_string()),
            ("MSCCLRS_LOCAL_RANK", rank.to_string()),
            ("MSCCLRS_LOCAL_WORLD_SIZE", ranks.to_string()),
            (ID.name, id.clone()),
        ]
    })
}
