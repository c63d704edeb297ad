//! `semel doctor --deep`: reads everything that a home keeps. The structure of each database, every
//! row of it against its own fingerprint, secrets and gears.

use std::path::Path;
use std::sync::Arc;

use semel_broker::housekeeping::check_once;
use semel_broker::store::{self as broker, Mesh, Report, SqliteStore, Store};
use semel_jobs::gear::package;
use semel_jobs::gear::secrets::Secrets;
use semel_store::StoreError;
use semel_store::sqlite::{RowsRead, Sqlite, SqliteOptions};

use super::Finding;
use super::stores::Expected;
use crate::exit::chain;
use crate::progress::Bar;
use crate::system::now;

/// What is wrong is shown so often for one database at the most.
const WRONG_MAX: usize = 8;

/// Reads the databases that are there and can be opened: what cannot was told already.
pub(super) async fn databases(expected: &[Expected], bar: &Bar) -> Vec<Finding> {
    let mut opened = Vec::new();
    let mut findings = Vec::new();
    for store in expected.iter().filter(|store| store.is_there()) {
        match open(store) {
            Ok(file) => opened.push((store, file)),
            Err(finding) => findings.push(finding),
        }
    }
    let mut rows = 0;
    for (store, file) in &opened {
        for tables in &store.rows {
            // Of a table that cannot be counted the reading says what is wrong.
            rows += file.count_rows(tables).await.unwrap_or(0);
        }
    }
    bar.expect(rows);
    for (store, file) in opened {
        let file = Arc::new(file);
        findings.push(read(store, &file, bar).await);
        file.close().await;
    }
    findings
}

fn open(store: &Expected) -> Result<Sqlite, Finding> {
    let path = &store.kept.path;
    // Nothing is written.
    let on_uncertain = Arc::new(|_: &StoreError| {});
    let (id, migrations) = (store.application_id, store.migrations.clone());
    let options = SqliteOptions::new(path, id, migrations, now().0, on_uncertain);
    Sqlite::open_to_read(&options).map_err(|error| problem(store, chain(&error)))
}

async fn read(store: &Expected, file: &Arc<Sqlite>, bar: &Bar) -> Finding {
    let name = store.kept.path.display().to_string();
    bar.name(format!("checking the structure of {name}"));
    let mut wrong = match file.integrity_check().await {
        Ok(wrong) => wrong,
        Err(error) => vec![error.chain()],
    };
    bar.name(format!("reading {name}"));
    let mut all = RowsRead::default();
    for tables in &store.rows {
        match file.read_rows(tables, |rows| bar.pass(rows)).await {
            Ok(read) => {
                all.rows += read.rows;
                all.bad += read.bad;
                wrong.extend(read.wrong);
            }
            Err(error) => wrong.push(error.chain()),
        }
    }
    if store.application_id == broker::SQLITE_APPLICATION_ID {
        bar.name(format!("comparing the tables of {name}"));
        wrong.extend(apart(file).await);
    }
    if wrong.is_empty() {
        let rows = all.rows;
        return Finding::sound("contents", format!("{name}: rows read: {rows}, bad: none"));
    }
    let more = wrong.len().saturating_sub(WRONG_MAX);
    wrong.truncate(WRONG_MAX);
    if more > 0 || all.bad > WRONG_MAX as u64 {
        wrong.push(format!("{} of {} rows are bad", all.bad, all.rows));
    }
    problem(store, wrong.join("; "))
}

/// What the broker's own check finds: effects of one message that are not all there.
async fn apart(file: &Arc<Sqlite>) -> Vec<String> {
    let store = Store::Sqlite(Arc::new(SqliteStore::over(Arc::clone(file))));
    let meshes = match store.mesh_list().await {
        Ok(meshes) => meshes,
        Err(error) => return vec![error.chain()],
    };
    let reports = check_once(&store, &meshes, now()).await;
    let of_mesh = |(mesh, report): (&Mesh, Result<Report, StoreError>)| {
        let slug = &mesh.slug;
        match report {
            Ok(report) => {
                let found = report.findings().into_iter().filter(|(_, count)| *count > 0);
                found.map(|(name, count)| format!("mesh {slug}: {name} {count}")).collect()
            }
            Err(error) => vec![format!("mesh {slug}: {}", error.chain())],
        }
    };
    meshes.iter().zip(reports).flat_map(of_mesh).collect()
}

fn problem(store: &Expected, wrong: String) -> Finding {
    let detail = format!("{}: {wrong}", store.kept.path.display());
    Finding::problem("contents", detail, store.repair.clone())
}

/// Secrets that gears are given.
pub(super) fn secrets(root: &Path) -> Option<Finding> {
    match Secrets::of(root).names() {
        Ok(names) if names.is_empty() => None,
        Ok(names) => {
            Some(Finding::sound("secrets", format!("all {} can be decrypted", names.len())))
        }
        Err(error) => {
            let to_do = "restore good copies of jobs/secrets and jobs/secrets.key, or delete both \
                         and set the secrets again: semel secret set NAME";
            Some(Finding::problem("secrets", chain(&error), to_do))
        }
    }
}

/// Packages of gears that were installed.
pub(super) fn gears(root: &Path, bar: &Bar) -> Vec<Finding> {
    let installed = match package::installed(root) {
        Ok(installed) => installed,
        Err(error) => {
            let to_do = "give the folder of gears to the user that runs semel";
            return vec![Finding::problem("gears", chain(&error), to_do)];
        }
    };
    let check = |id: &String| {
        bar.name(format!("reading the gear {id}"));
        match package::check(root, id) {
            Ok(()) => Finding::sound("gears", format!("{id} is what was installed")),
            Err(error) => {
                Finding::problem("gears", chain(&error), "install it again: semel gear install DIR")
            }
        }
    };
    installed.iter().map(check).collect()
}
