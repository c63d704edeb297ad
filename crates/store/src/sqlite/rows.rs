//! Reading whole tables, to see that every row is what was written to it. Pages are read one after
//! the other, so that nothing holds the log back for long, and a bad row hides none behind it.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};

use super::Sqlite;
use crate::{StoreError, is_of_one_row, limits};

/// A table that is read row by row.
pub struct TableRows {
    /// The name of the table.
    pub table: &'static str,
    /// SQL that counts its rows.
    pub count: &'static str,
    /// SQL that reads rows behind the place `?1`, in order, at most `?2` of them. The last column
    /// is the place of the row.
    pub page: &'static str,
    /// The place before the first row.
    pub start: Start,
    /// An error says what is wrong with the row.
    pub look: fn(&Connection, &Row<'_>) -> Result<(), StoreError>,
}

/// The kind of a table's places: each kind begins with its smallest value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Row numbers.
    Number,
    /// Keys of bytes.
    Bytes,
}

impl Start {
    fn value(self) -> Value {
        match self {
            Self::Number => Value::Integer(i64::MIN),
            Self::Bytes => Value::Blob(Vec::new()),
        }
    }
}

/// What was found in a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RowsRead {
    /// Rows that were read.
    pub rows: u64,
    /// Rows that are not what was written.
    pub bad: u64,
    /// What is wrong with the first of them, in words.
    pub wrong: Vec<String>,
}

impl RowsRead {
    fn complain(&mut self, table: &str, error: &StoreError) {
        self.bad += 1;
        if self.wrong.len() < limits::COMPLAINTS_MAX {
            self.wrong.push(format!("{table}: {}", error.chain()));
        }
    }
}

/// One page: where it ended, if there may be more.
struct Page {
    read: RowsRead,
    next: Option<Value>,
}

impl Sqlite {
    /// How many rows these tables have.
    pub async fn count_rows(&self, tables: &'static [TableRows]) -> Result<u64, StoreError> {
        let count = self.maintain(move |connection| {
            let mut rows = 0_i64;
            for table in tables {
                rows += connection.query_row(table.count, [], |row| row.get::<_, i64>(0))?;
            }
            Ok(u64::try_from(rows).unwrap_or(0))
        });
        count.await
    }

    /// Reads every row of these tables. `passed` hears after each page how many rows it had.
    pub async fn read_rows(
        &self,
        tables: &'static [TableRows],
        mut passed: impl FnMut(u64),
    ) -> Result<RowsRead, StoreError> {
        let mut all = RowsRead::default();
        for table in tables {
            let mut next = Some(table.start.value());
            while let Some(after) = next {
                let page = self.maintain(move |connection| page(connection, table, &after)).await?;
                passed(page.read.rows);
                all.rows += page.read.rows;
                all.bad += page.read.bad;
                let room = limits::COMPLAINTS_MAX - all.wrong.len();
                all.wrong.extend(page.read.wrong.into_iter().take(room));
                next = page.next;
            }
        }
        Ok(all)
    }
}

fn page(connection: &Connection, table: &TableRows, after: &Value) -> Result<Page, StoreError> {
    let limit = limits::ROWS_PER_PAGE;
    let mut statement = connection.prepare_cached(table.page)?;
    let place = statement.column_count() - 1;
    let mut rows = statement.query(params![after, limit])?;
    let (mut read, mut last) = (RowsRead::default(), None);
    while let Some(row) = rows.next()? {
        read.rows += 1;
        last = Some(row.get(place)?);
        match (table.look)(connection, row) {
            Ok(()) => {}
            Err(error @ StoreError::Corrupt { .. }) => read.complain(table.table, &error),
            Err(StoreError::Sqlite(error)) if is_of_one_row(&error) => {
                read.complain(table.table, &StoreError::Sqlite(error));
            }
            Err(error) => return Err(error),
        }
    }
    let is_full = read.rows >= u64::from(limit);
    Ok(Page { read, next: last.filter(|_| is_full) })
}
