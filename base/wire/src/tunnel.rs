//! What ends of a tunnel say before its bytes, and how a console's bytes are told from the rest.
//!
//! ```text
//! either end -> gateway: TunnelHello     gateway -> either end: TunnelReply     then both ends' bytes, as they come
//!   inside, under TLS between the ends:  node -> other end: TunnelReply         then the bytes of what was reached
//! ```

use prost::Message;

use crate::DecodeError;
use crate::limits::{SIGNED_TICKET_BYTES_MAX, TICKET_BYTES_MAX, TUNNEL_MESSAGE_BYTES_MAX};
use crate::proto::agent::{ExecTicket, SignedTicket};

/// Data of one frame of a console: what a terminal shows at once.
pub const CONSOLE_DATA_BYTES_MAX: usize = 16 * 1024;
const CONSOLE_HEAD_BYTES: usize = 3;

/// A message with its length before it. The caller's messages are shorter than [`TUNNEL_MESSAGE_BYTES_MAX`].
pub fn with_length(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let length = u16::try_from(body.len()).expect("messages of a tunnel are short");
    let mut bytes = Vec::with_capacity(2 + body.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// How long the message is that begins with these two bytes.
pub fn length(head: [u8; 2]) -> Result<usize, DecodeError> {
    let len = usize::from(u16::from_be_bytes(head));
    match len > TUNNEL_MESSAGE_BYTES_MAX {
        true => Err(DecodeError::TooLarge { what: "tunnel message", len, max: TUNNEL_MESSAGE_BYTES_MAX }),
        false => Ok(len),
    }
}

/// The two layers of a ticket. Whether to believe it is for whoever asks.
pub fn ticket(bytes: &[u8]) -> Result<(SignedTicket, ExecTicket), DecodeError> {
    let signed: SignedTicket = crate::decode("signed ticket", bytes, SIGNED_TICKET_BYTES_MAX)?;
    let ticket = crate::decode("ticket", &signed.ticket, TICKET_BYTES_MAX)?;
    Ok((signed, ticket))
}

/// What goes over a console. Each frame: its kind, the length of what follows in two bytes, and that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsoleFrame {
    Data(Vec<u8>),
    /// Of the terminal at the far end.
    Resize {
        columns: u16,
        rows: u16,
    },
    /// The shell has ended, with this status. Nothing follows.
    Exit(u8),
}

impl ConsoleFrame {
    /// Data is at most [`CONSOLE_DATA_BYTES_MAX`] long.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Data(data) => (0, data.clone()),
            Self::Resize { columns, rows } => (1, [columns.to_be_bytes(), rows.to_be_bytes()].concat()),
            Self::Exit(status) => (2, vec![*status]),
        };
        let length = u16::try_from(body.len()).expect("the caller gives no more than one frame takes");
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

/// Takes frames out of what has come.
#[derive(Debug, Default)]
pub struct ConsoleFrames {
    bytes: Vec<u8>,
}

impl ConsoleFrames {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame that is whole. A kind that is not known is passed over.
    pub fn next_frame(&mut self) -> Result<Option<ConsoleFrame>, DecodeError> {
        const WHAT: &str = "console frame";
        loop {
            let Some(&[kind, high, low]) = self.bytes.first_chunk::<CONSOLE_HEAD_BYTES>() else {
                return Ok(None);
            };
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len > CONSOLE_DATA_BYTES_MAX {
                return Err(DecodeError::TooLarge { what: WHAT, len, max: CONSOLE_DATA_BYTES_MAX });
            }
            if self.bytes.len() < CONSOLE_HEAD_BYTES + len {
                return Ok(None);
            }
            let body: Vec<u8> =
                self.bytes.drain(..CONSOLE_HEAD_BYTES + len).skip(CONSOLE_HEAD_BYTES).collect();
            match (kind, body.as_slice()) {
                (0, _) => return Ok(Some(ConsoleFrame::Data(body))),
                (1, &[a, b, c, d]) => {
                    let (columns, rows) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                    return Ok(Some(ConsoleFrame::Resize { columns, rows }));
                }
                (2, &[status]) => return Ok(Some(ConsoleFrame::Exit(status))),
                (1 | 2, _) => return Err(DecodeError::Malformed { what: WHAT }),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_out_whole_however_they_are_cut() {
        let frames = [
            ConsoleFrame::Data(b"hello".to_vec()),
            ConsoleFrame::Resize { columns: 80, rows: 24 },
            ConsoleFrame::Data(Vec::new()),
            ConsoleFrame::Exit(7),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(ConsoleFrame::encode).collect();
        for step in 1..bytes.len() {
            let (mut reader, mut found) = (ConsoleFrames::default(), Vec::new());
            for piece in bytes.chunks(step) {
                reader.push(piece);
                while let Some(frame) = reader.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "in pieces of {step}");
        }
    }

    #[test]
    fn a_frame_of_a_newer_end_is_passed_over_and_a_broken_one_is_refused() {
        let mut reader = ConsoleFrames::default();
        reader.push(&[9, 0, 2, 1, 1]);
        reader.push(&ConsoleFrame::Exit(1).encode());
        assert_eq!(reader.next_frame().unwrap(), Some(ConsoleFrame::Exit(1)));
        reader.push(&[1, 0, 1, 0]);
        assert!(reader.next_frame().is_err());
        let mut long = ConsoleFrames::default();
        long.push(&[0, 0xff, 0xff]);
        assert!(long.next_frame().is_err());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = ConsoleFrames::default();
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.next_frame() {}
            let _ = ticket(&bytes);
        }
    }
}
