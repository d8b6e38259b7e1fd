//! Tokens among arguments: every process of the machine can read those.

use std::ffi::OsStr;

/// What secrets begin with: tokens of users, and of machines that join.
const PREFIXES: [&str; 2] = ["bct_", "bcjt_"];
/// A prefix with less behind it is talk about tokens, not one.
const SECRET_LEN_MIN: usize = 8;

/// Whether any argument holds a token, alone or behind something like `--token=`.
pub fn holds_token<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> bool {
    arguments.into_iter().any(|argument| in_text(&argument.as_ref().to_string_lossy()))
}

fn in_text(text: &str) -> bool {
    PREFIXES.iter().any(|prefix| {
        text.match_indices(prefix).any(|(at, _)| {
            let secret = &text[at + prefix.len()..];
            secret.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(byte)).count()
                >= SECRET_LEN_MIN
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_wherever_it_stands() {
        for bad in ["bct_0123456789abcdef", "--token=bct_0123456789abcdef", "{\"t\":\"bcjt_0123456789\"}"] {
            assert!(holds_token(["nodes", bad]), "{bad}");
        }
    }

    #[test]
    fn an_id_and_talk_about_tokens_are_no_tokens() {
        for good in
            ["tok_01k5w000000000000000000000", "jt_01k5w000000000000000000000", "bct_", "bct_…", "nodes"]
        {
            assert!(!holds_token([good]), "{good}");
        }
    }
}
