//! How PostgreSQL reads a statement: its generic plan, as a statement gets it that is used for
//! long. On small tables every plan is a scan, and says nothing.

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A session that asks for plans.
pub struct Explainer(Client);

impl Explainer {
    /// With what a store sets on its connections.
    pub async fn at(address: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(address, NoTls).await.expect("a client");
        drop(tokio::spawn(connection));
        let explainer = Self(client);
        explainer.run("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off").await;
        explainer
    }

    /// Adds the first `count` rows by SQL that says `FIRST` and `LAST`, and lets the server look at
    /// them.
    pub async fn fill(&self, rows: &str, count: u32) {
        self.run(&rows.replace("FIRST", "1").replace("LAST", &count.to_string())).await;
        self.run("ANALYZE").await;
    }

    /// The plan, whatever is bound.
    pub async fn plan(&self, sql: &str) -> String {
        let parameters = self.0.prepare(sql).await.expect(sql).params().len();
        self.run(&format!("PREPARE asked AS {sql}")).await;
        let nothing = vec!["NULL"; parameters].join(", ");
        let with = if parameters == 0 { String::new() } else { format!("({nothing})") };
        let lines = self.0.simple_query(&format!("EXPLAIN EXECUTE asked {with}")).await;
        self.run("DEALLOCATE asked").await;
        text(&lines.expect(sql))
    }

    async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.expect(sql);
    }
}

/// The first column of all rows, which is how the server tells a plan.
pub(crate) fn text(lines: &[SimpleQueryMessage]) -> String {
    let rows = lines
        .iter()
        .filter_map(|line| if let SimpleQueryMessage::Row(row) = line { row.get(0) } else { None });
    rows.collect::<Vec<_>>().join("\n")
}

/// The statements of some files, each named by its file and its own name.
#[macro_export]
macro_rules! statements_of {
    ($($file:ident::ALL),+ $(,)?) => {{
        let mut named: Vec<(String, &'static str)> = Vec::new();
        $(for (name, sql) in $file::ALL {
            named.push((format!("{} {name}", stringify!($file)), *sql));
        })+
        named
    }};
}
