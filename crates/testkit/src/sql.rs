//! Statements and schemas against a real SQLite.

use rusqlite::Connection;

/// A new database with these migrations run one after the other.
pub fn migrated(migrations: &[semel_store::migration::Migration]) -> Connection {
    let connection = Connection::open_in_memory().expect("an empty database opens");
    for migration in migrations {
        let run = connection.execute_batch(migration.sql);
        run.unwrap_or_else(|error| panic!("migration {}: {error}", migration.name));
    }
    connection
}

/// The schema as SQLite keeps it: one line per table, index and trigger, white space folded.
pub fn schema(connection: &Connection) -> Vec<String> {
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name";
    let mut statement = connection.prepare(sql).expect("the schema is readable");
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
    rows.map(|row| fold(&row.expect("a row"))).collect()
}

fn fold(sql: &str) -> String {
    let uncommented: Vec<&str> =
        sql.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code)).collect();
    uncommented.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every statement prepares against this schema.
pub fn prepares(connection: &Connection, statements: &[(&str, &str)]) {
    for (name, sql) in statements {
        if let Err(error) = connection.prepare(sql) {
            panic!("{name} does not prepare: {error}");
        }
    }
}

/// How SQLite would run each statement, as text: what a plan test compares.
pub fn plans(connection: &Connection, statements: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, sql) in statements {
        let explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"));
        let mut explained = explained.unwrap_or_else(|error| panic!("{name}: {error}"));
        out.push_str(name);
        out.push('\n');
        // Parameters are left unbound: the plan does not depend on them.
        let mut rows = explained.raw_query();
        while let Some(row) = rows.next().expect("a plan's row") {
            let step: String = row.get(3).expect("a plan's text");
            out.push_str(&format!("    {step}\n"));
        }
    }
    out
}

/// The values that a column's `CHECK (column = 'a' OR column = 'b')` allows, or one with `IN`.
pub fn check_list(schema: &[String], column: &str) -> Vec<String> {
    let needle = format!("CHECK ({column} ");
    let text = schema.iter().find_map(|sql| sql.split_once(&needle)).map(|(_, rest)| rest);
    let text = text.unwrap_or_else(|| panic!("no {needle}"));
    let list = text.split_once(')').map_or(text, |(list, _)| list);
    list.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}
