//! Cuts a file into statements at the semicolons that end them.

/// The statements of `text`, without their semicolons. Semicolons in quotes, in dollar quotes and in comments do
/// not count.
pub fn statements(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        match skip(&text[at..]) {
            Some(length) => at += length,
            None => {
                if text.as_bytes()[at] == b';' {
                    found.push(&text[start..at]);
                    start = at + 1;
                }
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
    }
    found.push(&text[start..]);
    found.retain(|statement| !is_blank(statement));
    found
}

/// The length of the quoted text or comment that starts here, if one does. An unclosed one takes the rest.
fn skip(rest: &str) -> Option<usize> {
    let until =
        |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("--") {
        return Some(until(2, "\n"));
    }
    if rest.starts_with("/*") {
        return Some(until(2, "*/"));
    }
    // A doubled quote inside is one text ending and the next beginning, which comes to the same.
    for quote in ["'", "\""] {
        if rest.starts_with(quote) {
            return Some(until(1, quote));
        }
    }
    let tag_end = rest.strip_prefix('$')?.find('$')? + 2;
    let tag = &rest[..tag_end];
    let inner = &tag[1..tag_end - 1];
    let is_tag = inner.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !inner.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| until(tag_end, tag))
}

fn is_blank(statement: &str) -> bool {
    let mut rest = statement.trim_start();
    while rest.starts_with("--") || rest.starts_with("/*") {
        let length = skip(rest).unwrap_or(rest.len());
        rest = rest[length..].trim_start();
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests;
