//! What engines of one database tell each other.

use semel_jobs::store::{PostgresStore, Store};
use semel_store::StoreError;
use semel_testkit::servers;

use crate::support::{id, new_job, postgres_at};
use semel_jobs::store::postgres::Signal;

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_wakes_others_and_a_stop_names_its_job() -> Result<(), StoreError> {
    let address = servers::fresh_postgres().await;
    let one = PostgresStore::new(postgres_at(&address).await);
    let other = PostgresStore::new(postgres_at(&address).await);
    let mut heard = other.listen().unwrap();
    assert_eq!(heard.next().await?, Signal::Connected);
    // From a store that does not listen itself.
    one.notify(Signal::Stop(id(7))).await?;
    assert_eq!(heard.next().await?, Signal::Stop(id(7)));
    let mut own = one.listen().unwrap();
    assert_eq!(own.next().await?, Signal::Connected);
    Store::Postgres(one.clone()).submit(new_job(1)).await?;
    assert_eq!(heard.next().await?, Signal::Wake);
    assert_eq!(own.next().await?, Signal::Wake);
    one.notify(Signal::Stop(id(8))).await?;
    assert_eq!(heard.next().await?, Signal::Stop(id(8)));
    Ok(())
}
