//! Whole lines, each with its mark.
//!
//! Invariant: what goes into a batch is the mark, the line as it came, and a newline, unless it is the
//! end of a stream without one. So lines of different sources never meet within one line.

/// A line longer than this comes in several, so that memory stays bounded.
const LONGEST: usize = 1 << 20;

/// Lines of any sources, ready to be written.
#[derive(Debug, Default)]
pub(super) struct Batch(Vec<u8>);

impl Batch {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Something that is a line of its own.
    pub(super) fn push(&mut self, parts: &[&[u8]]) {
        if self.0.last().is_some_and(|&last| last != b'\n') {
            self.0.push(b'\n');
        }
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
    }
}

/// One source's lines.
#[derive(Debug)]
pub(super) struct Lines {
    mark: Vec<u8>,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

impl Lines {
    pub(super) fn new(mark: Vec<u8>) -> Lines {
        Lines { mark, begun: Vec::new() }
    }

    /// Takes the next bytes, and passes on the lines that they end.
    pub(super) fn take(&mut self, bytes: &[u8], batch: &mut Batch) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if part.ends_with(b"\n") {
                batch.push(&[&self.mark, &self.begun, part]);
                self.begun.clear();
                continue;
            }
            self.begun.extend_from_slice(part);
            while self.begun.len() > LONGEST {
                batch.push(&[&self.mark, &self.begun[..LONGEST], b"\n"]);
                self.begun.drain(..LONGEST);
            }
        }
    }

    /// Nothing more comes: passes on a line without an end.
    pub(super) fn end(&mut self, batch: &mut Batch) {
        if !self.begun.is_empty() {
            batch.push(&[&self.mark, &self.begun]);
            self.begun.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marked(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut batch) = (Lines::new(b"[7] ".to_vec()), Batch::default());
        pieces.iter().for_each(|piece| lines.take(piece, &mut batch));
        lines.end(&mut batch);
        batch.0
    }

    #[test]
    fn lines_are_marked_however_they_come() {
        let whole = &b"one\n\ntwo\r\n\xff\0\nend"[..];
        let expected = &b"[7] one\n[7] \n[7] two\r\n[7] \xff\0\n[7] end"[..];
        assert_eq!(marked(&[whole]), expected);
        for cut in 0..whole.len() {
            assert_eq!(marked(&[&whole[..cut], &whole[cut..]]), expected, "{cut}");
        }
        assert_eq!(marked(&[]), b"");
    }

    #[test]
    fn ends_without_a_newline_do_not_meet() {
        let mut batch = Batch::default();
        for (mark, text) in [(b"[0] ", &b"a"[..]), (b"[1] ", b"b\nc"), (b"[2] ", b"d")] {
            let mut lines = Lines::new(mark.to_vec());
            lines.take(text, &mut batch);
            lines.end(&mut batch);
        }
        assert_eq!(batch.bytes(), b"[0] a\n[1] b\n[1] c\n[2] d");
    }

    #[test]
    fn very_long_lines_come_in_pieces() {
        let long = vec![b'x'; 2 * LONGEST + 10];
        let found = marked(&[&long, b"\nshort\n"]);
        let lengths: Vec<_> = found.split(|&byte| byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lengths, [4 + LONGEST, 4 + LONGEST, 14, 9, 0]);
    }

    proptest! {
        #[test]
        fn without_its_marks_the_output_is_what_was_written(
            pieces in prop::collection::vec(prop::collection::vec(
                prop_oneof![Just(b'\n'), any::<u8>()], 0..50), 0..20)
        ) {
            let whole = pieces.concat();
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            let mut stripped = Vec::new();
            for line in marked(&pieces).split_inclusive(|&byte| byte == b'\n') {
                prop_assert!(line.starts_with(b"[7] "));
                stripped.extend_from_slice(&line[4..]);
            }
            prop_assert_eq!(stripped, whole);
        }
    }
}
