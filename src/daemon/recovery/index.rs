//! Repairs the index after a crash between the end of a run and its row.

use super::bound::{first_id, read_bound};
use crate::domain::RunId;
use crate::run::Host;
use crate::store::DbError;

/// Adds the runs that the ledger knows and the index lacks. Returns their number.
///
/// *Errors*: a database fails.
pub(super) async fn repair_index(host: &Host) -> Result<usize, DbError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    let bound = first_id(read_bound(host).await?);
    let before = bound.clone();
    let last = ledger.read(move |reader| reader.last_record_end_before(&before)).await?;
    // An older index may lack any run.
    let since = if last > index.last_before(bound.clone()).await? { String::new() } else { bound };
    let from = since.clone();
    let ended = ledger.read(move |reader| {
        let mut ids = Vec::new();
        reader.each_record_end(&from, |id| ids.push(id.to_owned()))?;
        Ok(ids)
    });
    let (ended, indexed) = (ended.await?, index.ids(since).await?);
    let missing = ended.into_iter().filter(|id| !indexed.contains(id));
    let missing: Vec<RunId> = missing.filter_map(|id| RunId::parse(&id).ok()).collect();
    let mut added = 0;
    for run_id in missing {
        // A run that was removed has no row either.
        if let Some(run) = host.state.find_run(&run_id) {
            index.refresh(host.state.clone(), run).await?;
            added += 1;
        }
    }
    Ok(added)
}
