//! What this host asks its peers: lookups, asked again over the next connection when one breaks.

use std::pin::pin;
use std::rc::Rc;

use capnp::Error;

use super::generated::peer_capnp::peer;
use super::lookups::{Asking, Get, LookupFault, Refusal, RefusalKind, Scan, Values};
use super::peer::{Peer, Route};
use super::wire;
use crate::epoch::Attempt;
use crate::lookup::Page;

/// How often a peer may fail a lookup, on connections that do not break, before it is given up.
const FAILURES_MAX: u32 = 3;

/// Looks up keys and passes on the answer.
pub(super) async fn get(peer: Rc<Peer>, mut asking: Asking<Get, Values>) {
    let (attempt, question) = (asking.attempt, &asking.question);
    let answer = tokio::select! {
        answer = ask(&peer, async |client| get_once(client, attempt, question).await) => answer,
        () = asking.answer.closed() => return,
    };
    // Who has asked may have gone.
    let _ = asking.answer.send(answer);
}

/// Lists keys and passes on the page.
pub(super) async fn scan(peer: Rc<Peer>, mut asking: Asking<Scan, Page>) {
    let (attempt, question) = (asking.attempt, &asking.question);
    let answer = tokio::select! {
        answer = ask(&peer, async |client| scan_once(client, attempt, question).await) => answer,
        () = asking.answer.closed() => return,
    };
    let _ = asking.answer.send(answer);
}

async fn ask<T>(
    peer: &Peer,
    mut once: impl AsyncFnMut(peer::Client) -> Result<Result<T, LookupFault>, Error>,
) -> Result<T, LookupFault> {
    let session = peer.session().ok_or(LookupFault::Lost)?;
    peer.meters.lookups_asked.add(1);
    let _turn = peer.turns.acquire().await.expect("the semaphore is never closed");
    let mut failures = 0;
    loop {
        let mut changed = pin!(peer.changed.notified());
        changed.as_mut().enable();
        match peer.route(session) {
            Route::Lost => return Err(LookupFault::Lost),
            Route::Wait => changed.await,
            Route::Ready { connection, client } => {
                let _call = peer.call(connection);
                let answered = tokio::select! {
                    answered = once(client) => answered,
                    () = peer.until_over(connection) => continue,
                };
                let error = match answered {
                    Ok(answer) => return answer,
                    Err(error) => error,
                };
                if peer.give_up(connection).await {
                    continue;
                }
                failures += 1;
                if failures == FAILURES_MAX {
                    let text = format!("`{}` does not answer: {error}", peer.name);
                    return Err(LookupFault::Refused(Refusal { kind: RefusalKind::Failed, text }));
                }
            }
        }
    }
}

async fn get_once(client: peer::Client, attempt: Attempt, get: &Get) -> Result<Result<Values, LookupFault>, Error> {
    let mut request = client.get_request();
    let mut told = request.get();
    told.set_attempt(attempt);
    told.set_table(get.table.number());
    wire::write_column(told.reborrow().init_keys(), &get.keys)?;
    wire::write_read(told.init_read(), &get.read)?;
    let response = request.send().promise.await?;
    wire::read_get_answer(response.get()?.get_answer()?, get.keys.len())
}

async fn scan_once(client: peer::Client, attempt: Attempt, scan: &Scan) -> Result<Result<Page, LookupFault>, Error> {
    let mut request = client.scan_request();
    let mut told = request.get();
    told.set_attempt(attempt);
    told.set_table(scan.table.number());
    told.set_from(&scan.from);
    told.set_limit(scan.limit);
    wire::write_bound(told.reborrow().init_to(), scan.to.as_deref());
    wire::write_consistency(told.init_read(), scan.consistency);
    let response = request.send().promise.await?;
    wire::read_scan_answer(response.get()?.get_answer()?, scan)
}
