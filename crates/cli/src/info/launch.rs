//! What a launcher says.

use mscclrs_core::LaunchEnvironment;

use super::model::Launch;

/// Of this process.
pub(super) fn launch() -> Launch {
    of(LaunchEnvironment::detect())
}

fn of(detected: mscclrs_core::Result<Option<LaunchEnvironment>>) -> Launch {
    let found = match detected {
        Ok(Some(found)) => found,
        Ok(None) => return Launch::default(),
        Err(error) => return Launch { error: Some(error.to_string()), ..Launch::default() },
    };
    Launch {
        launcher: Some(found.launcher.to_string()),
        rank: Some(found.rank),
        world_size: Some(found.world_size),
        local_rank: found.local_rank,
        local_world_size: found.local_world_size,
        rendezvous: found.rendezvous.as_ref().map(ToString::to_string),
        error: found.config().err().map(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_core::launch::Launcher;

    use super::*;

    fn found(rendezvous: Option<&str>) -> LaunchEnvironment {
        LaunchEnvironment {
            launcher: Launcher::Torch,
            rank: 3,
            world_size: 8,
            local_rank: Some(3),
            local_world_size: None,
            rendezvous: rendezvous.map(|text| text.parse().expect("address")),
        }
    }

    #[test]
    fn what_a_launcher_says_is_told() {
        let launch = of(Ok(Some(found(Some("node1:29501")))));
        assert_eq!(launch.launcher.as_deref(), Some("torchrun"));
        assert_eq!(
            (launch.rank, launch.world_size, launch.local_world_size),
            (Some(3), Some(8), None)
        );
        assert_eq!((launch.rendezvous.as_deref(), launch.error), (Some("node1:29501"), None));
    }

    #[test]
    fn a_launcher_that_says_no_place_to_meet_is_wrong() {
        let error = of(Ok(Some(found(None)))).error.expect("an error");
        assert!(error.contains("MSCCLRS_ADDRESS is not set"), "{error}");
    }

    #[test]
    fn without_a_launcher_nothing_is_said() {
        let launch = of(Ok(None));
        assert!(launch.launcher.is_none() && launch.error.is_none());
    }
}
