//! Lists for people: columns, as wide as they must be.

use semel_core::shown::shown;
use serde_json::Value;

/// A column: its heading, and the field that is shown in it.
pub(crate) type Column = (&'static str, &'static str);

/// The items of a list as a table, or a sentence when there are none.
pub(crate) fn table(list: &Value, columns: &[Column], none: &str) -> String {
    crate::colour::table(plain(list, columns, none))
}

fn plain(list: &Value, columns: &[Column], none: &str) -> String {
    let items: Vec<&Value> =
        list.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    if items.is_empty() {
        return format!("{none}\n");
    }
    let heading = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let row = |item: &&Value| columns.iter().map(|(_, field)| cell(item, field)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(items.iter().map(row)).collect();
    let width = |number: usize| rows.iter().map(|row| row[number].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|n| width(n).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// What somebody else wrote must not move the cursor, and a long body not fill the screen.
fn cell(item: &Value, field: &str) -> String {
    let text = match item.get(field) {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(other @ (Value::Number(_) | Value::Array(_) | Value::Object(_))) => other.to_string(),
    };
    let plain = shown(&text);
    match plain.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain.into_owned(),
    }
}

const CELL_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_line_up_and_nothing_moves_the_cursor() {
        let list = json!({"items": [{"name": "a\u{1b}[2J", "n": 1}, {"name": "bb", "n": null}]});
        let shown = plain(&list, &[("NAME", "name"), ("N", "n")], "nothing");
        assert_eq!(shown, "NAME        N\na\\u{1b}[2J  1\nbb          –\n");
        assert_eq!(plain(&json!({"items": []}), &[], "nothing"), "nothing\n");
    }

    #[test]
    fn a_name_that_turns_the_line_or_hides_in_it_is_spelled_out() {
        let list = json!({"items": [{"name": "bob\u{202e}\u{200b}\u{9b}1\n2\u{e0041}"}]});
        let shown = plain(&list, &[("NAME", "name")], "nothing");
        assert_eq!(shown, "NAME\nbob\\u{202e}\\u{200b}\\u{9b}1\\u{a}2\\u{e0041}\n");
    }
}
