//! Server-sent events, parsed as the WHATWG HTML standard says (section 9.2.6), with a bound on what one event holds.

use bytes::BytesMut;

/// Larger than any event the server writes.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// One dispatched event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

/// An event was larger than [`EVENT_BYTES_MAX`], or not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is too large or no text")]
pub struct SseError;

/// Takes bytes as they come and gives events as they end.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: BytesMut,
    /// The last byte was a CR: a LF that follows belongs to it.
    after_cr: bool,
    id: Option<String>,
    event: String,
    data: String,
    has_data: bool,
}

impl Parser {
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, SseError> {
        let mut frames = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.after_cr);
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    let line = self.buffer.split();
                    let line = std::str::from_utf8(&line).map_err(|_| SseError)?;
                    if let Some(frame) = self.line(line.strip_prefix('\u{feff}').unwrap_or(line)) {
                        frames.push(frame);
                    }
                }
                _ => self.buffer.extend_from_slice(&[byte]),
            }
            if self.buffer.len() + self.data.len() > EVENT_BYTES_MAX {
                return Err(SseError);
            }
        }
        Ok(frames)
    }

    fn line(&mut self, line: &str) -> Option<Frame> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            let event = std::mem::take(&mut self.event);
            let has_data = std::mem::take(&mut self.has_data);
            return has_data.then(|| Frame { id: self.id.clone(), event, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(value);
            }
            "event" => self.event = value.to_owned(),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // Comments (an empty name) keep the connection open; unknown fields are ignored.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests;
