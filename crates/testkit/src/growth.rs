//! What a statement of a PostgreSQL store touches on large tables when its plan was made on empty
//! ones, as that of a server is which was just set up: the plan is kept for long, and what was
//! equally cheap on nothing is not on a million rows. Statistics come later, and change it again.
//!
//! Pages are counted, not times: a plan that reads what it does not need reads more of them. They
//! are counted at two sizes: what is read beside the rows that are given grows with the tables.

use std::collections::HashMap;

use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::explain::text;

/// Pages that a statement may touch before its first row.
const PAGES_BEFORE: u64 = 60;
/// Pages for each row that it gives or changes: it may be joined with others and be in many
/// indexes.
const PAGES_PER_ROW: u64 = 40;
/// Rows of every table, at first and then.
const SIZES: [u32; 2] = [2_000, 20_000];
/// What a statement may touch more of the larger tables: as much again as of the smaller ones, and
/// a few levels of indexes.
const GROWTH_MAX: u64 = 2;
const GROWTH_BEFORE: u64 = 20;
/// What every store sets on its connections (`semel_store::postgres`).
const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off;
                        SET enable_seqscan = off; SET enable_bitmapscan = off";

/// The statements of a store, and the rows that make its tables large.
pub struct Growth<'a> {
    /// A database with the store's tables, all of them empty.
    pub address: &'a str,
    /// SQL that adds the rows from `FIRST` to `LAST` to each.
    pub rows: &'a str,
    /// Each statement with its name.
    pub statements: Vec<(String, &'a str)>,
    /// Arguments of statements that need others than the usual ones of their types, as a list in
    /// SQL; `ID(7)` is the identifier of the seventh row.
    pub arguments: &'a [(&'a str, &'a str)],
    /// Those that are meant to read whole tables.
    pub whole: &'a [&'a str],
}

impl Growth<'_> {
    /// What touches more than it gives, with its plan: planned on empty tables, on large ones of
    /// which nothing is known yet, and with statistics; beside what it gives, and beside what it
    /// touched of small tables.
    pub async fn costly(&self) -> Vec<String> {
        let (client, filler) = (connect(self.address).await, connect(self.address).await);
        client.batch_execute(SETTINGS).await.expect("settings");
        // The first temporary table of a database makes everybody plan anew.
        self.fill(&filler, 1, 0).await;
        let asked = self.planned(&client).await;
        let (mut costly, mut before) = (Vec::new(), HashMap::new());
        self.fill(&filler, 1, SIZES[0]).await;
        let later = connect(self.address).await;
        later.batch_execute(SETTINGS).await.expect("settings");
        self.planned(&later).await;
        for (name, execute) in &asked {
            let touched = touches(&client, name, execute).await;
            drop(touched.map(|touched| touched.map(|touched| before.insert(name, touched))));
        }
        self.fill(&filler, SIZES[0] + 1, SIZES[1]).await;
        let moments = [
            ("planned on empty tables", &client, "SELECT"),
            ("planned on small tables", &later, "SELECT"),
            ("planned without statistics", &later, "DISCARD PLANS"),
            ("planned with statistics", &later, "ANALYZE"),
        ];
        for (moment, client, first) in moments {
            client.batch_execute(first).await.expect(first);
            for (name, execute) in &asked {
                let found = match touches(client, name, execute).await {
                    Ok(touched) => touched.and_then(|touched| touched.amiss(before.get(name))),
                    Err(refused) => Some(refused),
                };
                costly.extend(found.map(|found| format!("{name}, {moment}: {found}")));
            }
        }
        costly
    }

    /// Every statement by name, with its plan made.
    async fn planned(&self, client: &Client) -> Vec<(&str, String)> {
        let mut asked = Vec::new();
        for (number, (name, sql)) in self.statements.iter().enumerate() {
            let types = client.prepare(sql).await.expect(sql).params().to_vec();
            let own = self.arguments.iter().find(|(own, _)| own == name);
            let arguments = own.map_or_else(|| usual(&types), |(_, own)| identified(own));
            client.batch_execute(&format!("PREPARE s{number} AS {sql}")).await.expect(sql);
            let with = if types.is_empty() { String::new() } else { format!("({arguments})") };
            let execute = format!("EXECUTE s{number} {with}");
            // It is kept.
            client.simple_query(&format!("EXPLAIN {execute}")).await.expect(&execute);
            if !self.whole.contains(&name.as_str()) {
                asked.push((name.as_str(), execute));
            }
        }
        let named = |name: &&str| self.statements.iter().any(|(own, _)| own == name);
        let mut names = self.arguments.iter().map(|(name, _)| name).chain(self.whole);
        assert!(names.all(named), "every exception is one of a statement");
        asked
    }

    /// By another session, so that the first has nothing but its plans.
    async fn fill(&self, filler: &Client, first: u32, last: u32) {
        let rows = self.rows.replace("FIRST", &first.to_string());
        let rows = rows.replace("LAST", &last.to_string());
        filler.batch_execute(&rows).await.expect("rows");
    }
}

/// What a statement has touched.
struct Touched {
    pages: u64,
    rows: u64,
    plan: String,
}

impl Touched {
    /// What is wrong with it, given what it touched of small tables.
    fn amiss(&self, before: Option<&Self>) -> Option<String> {
        let Self { pages, rows, plan } = self;
        if *pages > PAGES_BEFORE + PAGES_PER_ROW * rows {
            return Some(format!("{pages} pages for {rows} rows\n{plan}"));
        }
        let before = before?;
        let more = PAGES_PER_ROW * rows.saturating_sub(before.rows);
        let grows = *pages > GROWTH_MAX * before.pages + GROWTH_BEFORE + more;
        let (few, first) = (before.pages, before.rows);
        grows.then(|| format!("{few} pages for {first} rows, then {pages} for {rows}\n{plan}"))
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

/// What it touches, or why it does nothing. What it changes is undone. Twice, and the lesser
/// counts: who must read the catalogue anew touches it, too.
async fn touches(client: &Client, name: &str, execute: &str) -> Result<Option<Touched>, String> {
    let (first, again) =
        (touched(client, name, execute).await?, touched(client, name, execute).await?);
    Ok([first, again].into_iter().flatten().min_by_key(|touched| touched.pages))
}

async fn touched(client: &Client, name: &str, execute: &str) -> Result<Option<Touched>, String> {
    client.batch_execute("BEGIN").await.expect("a transaction");
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {execute}");
    let said = client.simple_query(&explain).await;
    client.batch_execute("ROLLBACK").await.expect("a transaction");
    let Ok(said) = said else {
        // A plain write that the rows refuse looks for nothing.
        let plan = text(&client.simple_query(&format!("EXPLAIN {execute}")).await.expect(name));
        let mut tables = plan.lines().filter(|line| !line.contains("Function Scan on"));
        let looks = tables.any(|line| line.contains("Scan "));
        let refused = || format!("its arguments are refused: {said:?}\n{plan}");
        return if looks { Err(refused()) } else { Ok(None) };
    };
    let told: Value = serde_json::from_str(&text(&said)).expect("a plan");
    let plan = &told[0]["Plan"];
    let pages = count(plan, "Shared Hit Blocks") + count(plan, "Shared Read Blocks");
    let rows = count(plan, "Actual Rows").max(changed(plan));
    Ok(Some(Touched { pages, rows, plan: format!("{plan:#}") }))
}

fn count(plan: &Value, field: &str) -> u64 {
    // Later versions count rows in fractions.
    let whole = |number: f64| format!("{number:.0}").parse().ok();
    plan[field].as_f64().and_then(whole).unwrap_or(0)
}

/// Rows that were given to something that changes them.
fn changed(plan: &Value) -> u64 {
    let below = plan["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Not what was read before, to know which they are.
    let given = |child: &&Value| child["Parent Relationship"] == "Outer";
    let own = |child: &Value| count(child, "Actual Rows") * count(child, "Actual Loops");
    let changes = matches!(plan["Node Type"].as_str(), Some("ModifyTable" | "LockRows"));
    let here = if changes { below.iter().filter(given).map(own).sum() } else { 0 };
    here + below.iter().map(changed).sum::<u64>()
}
