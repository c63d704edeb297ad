//! What a statement of a PostgreSQL store touches on large tables when its plan was made on empty
//! ones, as that of a server is which was just set up: the plan is kept for long, and what was
//! equally cheap on nothing is not on a million rows. Statistics come later, and change it again.
//!
//! Pages are counted, not times: a plan that reads what it does not need reads more of them.

use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Pages that a statement may touch before its first row.
const PAGES_BEFORE: u64 = 60;
/// Pages for each row that it gives or changes: it may be joined with others and be in many
/// indexes.
const PAGES_PER_ROW: u64 = 40;
/// What a server sets on its connections (`semel_store::postgres`).
const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off;
                        SET enable_seqscan = off";

/// The statements of a store, and the rows that make its tables large.
pub struct Growth<'a> {
    /// A database with the store's tables, all of them empty.
    pub address: &'a str,
    /// SQL that fills them.
    pub rows: &'a str,
    /// Each statement with its name.
    pub statements: Vec<(&'a str, &'a str)>,
    /// Arguments of statements that need others than the usual ones of their types, as a list in
    /// SQL; `ID(7)` is the identifier of the seventh row.
    pub arguments: &'a [(&'a str, &'a str)],
    /// Those that are meant to read whole tables.
    pub whole: &'a [&'a str],
}

impl Growth<'_> {
    /// What touches more than it gives, with its plan; on the plans of empty tables and on those of
    /// tables with statistics.
    pub async fn costly(&self) -> Vec<String> {
        let client = connect(self.address).await;
        client.batch_execute(SETTINGS).await.expect("settings");
        let mut asked = Vec::new();
        for (number, (name, sql)) in self.statements.iter().enumerate() {
            let types = client.prepare(sql).await.expect(sql).params().to_vec();
            let own = self.arguments.iter().find(|(own, _)| own == name);
            let arguments = own.map_or_else(|| usual(&types), |(_, own)| identified(own));
            client.batch_execute(&format!("PREPARE s{number} AS {sql}")).await.expect(sql);
            let with = if types.is_empty() { String::new() } else { format!("({arguments})") };
            let execute = format!("EXECUTE s{number} {with}");
            // Its plan is made here, and kept.
            client.simple_query(&format!("EXPLAIN {execute}")).await.expect(sql);
            asked.push((*name, execute));
        }
        // By another session, so that this one has nothing but its plans.
        let filler = connect(self.address).await;
        filler.batch_execute(self.rows).await.expect("rows");
        let mut costly = Vec::new();
        for moment in ["planned on empty tables", "planned with statistics"] {
            for (name, execute) in &asked {
                if !self.whole.contains(name) {
                    let found = touches(&client, name, execute).await;
                    costly.extend(found.map(|found| format!("{name}, {moment}: {found}")));
                }
            }
            filler.batch_execute("ANALYZE").await.expect("statistics");
        }
        costly
    }
}

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.expect("a client");
    drop(tokio::spawn(connection));
    client
}

/// The identifier that the rows of a store have for this number.
fn id(number: u32) -> String {
    format!("'{:032x}'::uuid", number)
}

/// The same with identifiers in the place of `ID(n)`.
fn identified(arguments: &str) -> String {
    let mut parts = arguments.split("ID(");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(')').expect("ID(n)");
        text.push_str(&id(number.parse().expect("a number")));
        text.push_str(rest);
    }
    text
}

/// Something of each type that is among the rows; the first identifier is that of the whole.
fn usual(types: &[Type]) -> String {
    let hash = "decode(md5('7') || md5('8'), 'hex')";
    let mut is_first = true;
    let one = |kind: &Type, is_first: &mut bool| match *kind {
        Type::UUID => id(if std::mem::take(is_first) { 1 } else { 7 }),
        Type::INT8 => "100".to_owned(),
        Type::INT2 | Type::INT4 => "1".to_owned(),
        Type::BOOL => "TRUE".to_owned(),
        Type::TEXT => "'topic 7'".to_owned(),
        Type::BYTEA => hash.to_owned(),
        Type::JSON => "'{}'".to_owned(),
        Type::UUID_ARRAY => format!("ARRAY[{}, {}]", id(7), id(507)),
        Type::INT8_ARRAY => "ARRAY[7, 507]::bigint[]".to_owned(),
        Type::INT2_ARRAY => "ARRAY[1, 1]::smallint[]".to_owned(),
        Type::BOOL_ARRAY => "ARRAY[TRUE, TRUE]".to_owned(),
        Type::TEXT_ARRAY => "ARRAY['topic 7', 'topic 8']".to_owned(),
        Type::BYTEA_ARRAY => format!("ARRAY[{hash}, {hash}]"),
        _ => format!("NULL::{kind}"),
    };
    types.iter().map(|kind| one(kind, &mut is_first)).collect::<Vec<_>>().join(", ")
}

/// What is wrong with it, if it touches too much. What it changes is undone.
async fn touches(client: &Client, name: &str, execute: &str) -> Option<String> {
    client.batch_execute("BEGIN").await.expect("a transaction");
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {execute}");
    let said = client.simple_query(&explain).await;
    client.batch_execute("ROLLBACK").await.expect("a transaction");
    let Ok(said) = said else {
        // A plain write that the rows refuse looks for nothing.
        let plan = text(&client.simple_query(&format!("EXPLAIN {execute}")).await.expect(name));
        let mut tables = plan.lines().filter(|line| !line.contains("Function Scan on"));
        let looks = tables.any(|line| line.contains("Scan "));
        return looks.then(|| format!("its arguments are refused: {said:?}\n{plan}"));
    };
    let told: Value = serde_json::from_str(&text(&said)).expect("a plan");
    let plan = &told[0]["Plan"];
    let pages = count(plan, "Shared Hit Blocks") + count(plan, "Shared Read Blocks");
    let rows = count(plan, "Actual Rows").max(changed(plan));
    let allowed = PAGES_BEFORE + PAGES_PER_ROW * rows;
    (pages > allowed).then(|| format!("{pages} pages for {rows} rows\n{plan:#}"))
}

fn count(plan: &Value, field: &str) -> u64 {
    // Later versions count rows in fractions.
    let whole = |number: f64| format!("{number:.0}").parse().ok();
    plan[field].as_f64().and_then(whole).unwrap_or(0)
}

/// Rows that were given to something that changes them.
fn changed(plan: &Value) -> u64 {
    let below = plan["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let own = |child: &Value| count(child, "Actual Rows") * count(child, "Actual Loops");
    let changes = matches!(plan["Node Type"].as_str(), Some("ModifyTable" | "LockRows"));
    let here = if changes { below.iter().map(own).sum() } else { 0 };
    here + below.iter().map(changed).sum::<u64>()
}

fn text(said: &[SimpleQueryMessage]) -> String {
    let lines = said
        .iter()
        .filter_map(|line| if let SimpleQueryMessage::Row(row) = line { row.get(0) } else { None });
    lines.collect::<Vec<_>>().join("\n")
}
