//! Fuzz target: what neighbours say to each other.

use mscclrs_fuzz::Target;

use super::frame::Frame;
use super::{Loss, LossCause};

pub(crate) const FRAMES: Target = Target { name: "liveness_frames", run: frames, seeds };

/// The length of pieces, then frames.
fn frames(input: &[u8]) -> bool {
    let Some((&piece, stream)) = input.split_first() else { return false };
    let (mut inbox, mut whole) = (Vec::new(), Vec::new());
    for piece in stream.chunks(usize::from(piece).max(1)) {
        inbox.extend_from_slice(piece);
        loop {
            match Frame::take(&mut inbox) {
                Ok(Some(frame)) => frame.put(&mut whole),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    assert_eq!([&whole[..], &inbox].concat(), stream);
    inbox.is_empty()
}

fn seeds() -> Vec<Vec<u8>> {
    let lost = |cause| Frame::Lost(Loss { rank: 7, cause });
    let frames = [
        Frame::Heartbeat,
        Frame::Left(3),
        lost(LossCause::Failed("out of memory".into())),
        lost(LossCause::HungUp),
        lost(LossCause::Silent),
        Frame::Goodbye,
    ];
    let stream = |piece| {
        let mut bytes = vec![piece];
        frames.iter().for_each(|frame| frame.put(&mut bytes));
        bytes
    };
    vec![stream(1), stream(255)]
}
