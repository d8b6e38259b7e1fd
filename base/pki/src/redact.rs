//! Takes secrets out of text that leaves a machine: log bundles, error reports. Better a harmless word too many than a
//! secret: the rules look at shape, not at meaning. One pass over the text, linear in its length.

use crate::token::{ApiToken, JoinToken};

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";

const PEM_BEGIN: &str = "-----BEGIN ";
const TOKEN_PREFIXES: [&str; 2] = ["bct_", "bcjt_"];
/// A TypeID after a token's prefix is public and helps a reader: prefix and id stay.
const TOKEN_ID_PREFIXES: [&str; 2] = ["tok_", "jt_"];
const TYPE_ID_CHARS: usize = 26;

/// Names whose value goes, when `=` or a quoted value follows. Compared in lowercase, at the end of the name, so
/// that `AWS_SECRET_ACCESS_KEY`, `clientSecret` and `X-Amz-Signature` all count.
const SECRET_NAMES: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secret_access_key",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "authorization",
    "x-amz-signature",
    "x-amz-credential",
    "sig",
];
/// Names whose value goes after `:` without quotes too; the others are common words in messages.
const SECRET_HEADERS: [&str; 5] = ["password", "passwd", "passphrase", "authorization", "x-auth-token"];

/// The text with tokens, JWTs, PEM private keys, passwords in URLs, bearer credentials and values of secret-looking
/// names replaced by `[redacted]`.
pub fn redact(text: &str) -> String {
    let mut scanner = Scanner { text, at: 0, out: String::with_capacity(text.len()) };
    while scanner.at < text.len() {
        scanner.step();
    }
    scanner.out
}

/// Whether a command-line argument is a secret pasted where others can see it: an API token, a join token, a PEM
/// private key, or a JWT.
pub fn looks_like_secret(argument: &str) -> bool {
    let argument = argument.trim();
    argument.parse::<ApiToken>().is_ok()
        || argument.parse::<JoinToken>().is_ok()
        || TOKEN_PREFIXES.iter().any(|prefix| argument.starts_with(prefix))
        || private_key_label(argument).is_some()
        || (argument.bytes().all(is_run_byte) && jwt_start(argument) == Some(0))
}

struct Scanner<'t> {
    text: &'t str,
    at: usize,
    out: String,
}

impl<'t> Scanner<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn copy(&mut self, len: usize) {
        self.out.push_str(&self.rest()[..len]);
        self.at += len;
    }

    /// Neighbouring secrets share one mark, so that a log redacted at two stations reads the same.
    fn hide(&mut self, len: usize) {
        if !self.out.ends_with(REDACTED) {
            self.out.push_str(REDACTED);
        }
        self.at += len;
    }

    fn step(&mut self) {
        let rest = self.rest();
        if rest.starts_with(REDACTED) {
            self.hide(REDACTED.len());
        } else if let Some(label) = private_key_label(rest) {
            self.hide_pem(label);
        } else if rest.starts_with("://") {
            self.copy(3);
            self.hide_user_info();
        } else if is_run_byte(rest.as_bytes()[0]) {
            self.run();
        } else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            self.copy(len);
        }
    }

    /// From BEGIN through END; a block cut short goes with all that follows it, since its key may.
    fn hide_pem(&mut self, label: &str) {
        let rest = self.rest();
        let end_marker = format!("-----END {label}-----");
        let end = rest.find(&end_marker).map_or(rest.len(), |at| at + end_marker.len());
        self.hide(end);
    }

    /// `user:password@` keeps the user; `token@` goes whole. Only the authority is looked at.
    fn hide_user_info(&mut self) {
        let rest = self.rest();
        let end = rest.find(|c: char| c.is_whitespace() || "/?#\"'<>\\".contains(c)).unwrap_or(rest.len());
        let Some(at_sign) = rest[..end].rfind('@') else { return };
        match rest[..at_sign].find(':') {
            Some(colon) => {
                self.copy(colon + 1);
                self.hide(at_sign - colon - 1);
            }
            None => self.hide(at_sign),
        }
    }

    /// A maximal run of word characters, then what its meaning says about the text behind it.
    fn run(&mut self) {
        let len = run_len(self.rest());
        let run = &self.rest()[..len];
        let hidden_from = [token_start(run), jwt_start(run)].into_iter().flatten().min();
        match hidden_from {
            Some(start) => {
                let kept = start + public_part(&run[start..]);
                self.copy(kept);
                self.hide(len - kept);
            }
            None => self.copy(len),
        }
        let name = run.to_ascii_lowercase();
        if matches!(name.as_str(), "bearer" | "basic") {
            self.hide_credentials();
        } else if SECRET_NAMES.iter().chain(&SECRET_HEADERS).any(|secret| name.ends_with(secret)) {
            self.hide_value(&name);
        }
    }

    /// After `Bearer` or `Basic`: spaces, then something long enough to be a credential rather than the next word.
    fn hide_credentials(&mut self) {
        const CREDENTIAL_CHARS_MIN: usize = 16;
        let rest = self.rest();
        let spaces = rest.len() - rest.trim_start_matches(' ').len();
        let value = value_len(&rest[spaces..]);
        if spaces > 0 && value >= CREDENTIAL_CHARS_MIN {
            self.copy(spaces);
            self.hide(value);
        }
    }

    /// After a secret name: an optional closing quote, `=` or `:`, then the value, quoted or up to a delimiter.
    fn hide_value(&mut self, name: &str) {
        let rest = self.rest();
        // A quote inside a JSON string is written `\"`, so a backslash may stand before each.
        let mut head = skip_quote(rest, 0);
        head += spaces_len(&rest[head..]);
        let separator = rest.as_bytes().get(head).copied();
        if !matches!(separator, Some(b'=' | b':')) {
            return;
        }
        head += 1;
        head += spaces_len(&rest[head..]);
        let value_at = skip_quote(rest, head);
        let quoted = value_at > head;
        let header = SECRET_HEADERS.iter().any(|secret| name.ends_with(secret));
        if separator == Some(b':') && !quoted && !header {
            return;
        }
        let value = &rest[value_at..];
        let len = if quoted {
            value
                .find(['"', '\'', '\n'])
                .map_or(value.len(), |end| end - usize::from(value[..end].ends_with('\\')))
        } else if name.ends_with("authorization") {
            // The scheme and the credential are two words: the rest of the line goes.
            value.find(['\r', '\n', '"']).unwrap_or(value.len())
        } else {
            value_len(value)
        };
        if len > 0 {
            self.copy(value_at);
            self.hide(len);
        }
    }
}

fn is_run_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

/// How long the run at the front is. A PEM header ends it, although dashes belong to runs.
fn run_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut len = 1;
    while len < bytes.len() && is_run_byte(bytes[len]) && !bytes[len..].starts_with(PEM_BEGIN.as_bytes()) {
        len += 1;
    }
    len
}

/// Up to whitespace or what ends a value in queries, lists and quotes.
fn value_len(text: &str) -> usize {
    text.find(|c: char| c.is_whitespace() || "&,;\"'\\<>(){}".contains(c)).unwrap_or(text.len())
}

fn spaces_len(text: &str) -> usize {
    text.len() - text.trim_start_matches(' ').len()
}

fn skip_quote(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    match rest {
        [b'\\', b'"' | b'\'', ..] => at + 2,
        [b'"' | b'\'', ..] => at + 1,
        _ => at,
    }
}

/// Where one of our tokens starts in a run.
fn token_start(run: &str) -> Option<usize> {
    TOKEN_PREFIXES.iter().filter_map(|prefix| run.find(prefix)).min()
}

/// How much of a run that starts with a token's prefix is public: the prefix and a whole id, or nothing.
fn public_part(token: &str) -> usize {
    for prefix in TOKEN_PREFIXES {
        let Some(rest) = token.strip_prefix(prefix) else { continue };
        for id in TOKEN_ID_PREFIXES {
            let whole = id.len() + TYPE_ID_CHARS + 1;
            if rest.starts_with(id) && rest.get(..whole).is_some_and(|head| head.ends_with('_')) {
                return prefix.len() + whole;
            }
        }
        return prefix.len();
    }
    0
}

/// Where a JWT or JWE starts in a run: `eyJ` (the base64url of `{"`) with at least two dots behind it.
fn jwt_start(run: &str) -> Option<usize> {
    let start = run.find("eyJ")?;
    (run[start..].bytes().filter(|byte| *byte == b'.').count() >= 2).then_some(start)
}

/// The label of the PEM private key block at the front: `PRIVATE KEY`, `EC PRIVATE KEY`, `OPENSSH PRIVATE KEY` …
fn private_key_label(text: &str) -> Option<&str> {
    const LABEL_CHARS_MAX: usize = 64;
    let rest = text.strip_prefix(PEM_BEGIN)?;
    let end = rest.bytes().take(LABEL_CHARS_MAX).position(|byte| byte == b'-')?;
    let label = rest.get(..end)?;
    (label.ends_with("PRIVATE KEY") && rest[end..].starts_with("-----")).then_some(label)
}

#[cfg(test)]
mod tests;
