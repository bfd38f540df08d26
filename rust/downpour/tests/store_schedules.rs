//! Random schedules, the same for the store and for a store that is one mutex: whatever the order
//! of arrival, the order of tickets decides, to the bit.

#![cfg(not(loom))]

mod optimizer_twin;

use downpour::kernel::{Gradient, Level};
use downpour::store::{Geometry, Outcome, Store, Tuning};
use optimizer_twin::{Records, Twin, bits, chains, compile};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { len: 150, stripe_len: 16, fragment_len: 48 };

#[derive(Clone, Debug)]
struct Planned {
    fragment: usize,
    value: f32,
    poison: bool,
    /// Never submitted.
    dropped: bool,
    /// When it arrives, against its ticket: sorted by this.
    arrival: u16,
}

fn planned() -> impl Strategy<Value = Planned> {
    (0..4_usize, -1.5_f32..1.5, prop::bool::weighted(0.1), prop::bool::weighted(0.1), any::<u16>())
        .prop_map(|(fragment, value, poison, dropped, arrival)| Planned {
            fragment,
            value,
            poison,
            dropped,
            arrival,
        })
}

fn gradient(plan: &Planned) -> Vec<f32> {
    let len = GEOMETRY.fragment_range(plan.fragment).len();
    let mut gradient: Vec<f32> =
        (0..len).map(|index| plan.value * f32::from(u16::try_from(index % 11).unwrap())).collect();
    if plan.poison {
        gradient[len / 2] = f32::NAN;
    }
    gradient
}

/// What tells two final states apart: planes and versions. LSNs depend on the arrival order
/// between fragments.
fn state(store: &dyn Records, planes: usize) -> (Vec<Vec<u32>>, u64, Vec<u64>) {
    let (lsn, versions, _) = store.counters();
    ((0..planes).map(|plane| bits(&store.plane(plane))).collect(), lsn, versions)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn tickets_decide_whatever_the_arrival(
        chain in 0..chains().len(),
        plans in prop::collection::vec(planned(), 1..40),
        fold_limit in 1..4_u32,
    ) {
        let parts = chains().swap_remove(chain);
        let twin = Twin::new(GEOMETRY, &parts);
        let tuning = Tuning { fold_limit, ..Tuning::default() };
        let store =
            Store::with_tuning(GEOMETRY, compile(&parts, Level::best()), tuning).unwrap();
        let mut expected = Vec::new();
        let mut arrivals = Vec::new();
        for plan in &plans {
            let ticket = store.ticket(plan.fragment);
            arrivals.push((plan.arrival, ticket, plan, expected.len()));
            let answer = (!plan.dropped).then(|| twin.apply(plan.fragment, &gradient(plan), 0.5));
            expected.push(answer.map(|answer| answer.map(|applied| applied.version_before)));
        }
        arrivals.sort_by_key(|(arrival, ..)| *arrival);
        let mut receipts = Vec::new();
        for (_, ticket, plan, index) in arrivals {
            if plan.dropped {
                drop(ticket);
                continue;
            }
            match store.submit(ticket, Gradient::F32(&gradient(plan)), 0.5) {
                Ok(Outcome::Queued(receipt)) => receipts.push((index, receipt)),
                Ok(Outcome::Applied(applied)) => {
                    prop_assert_eq!(expected[index].clone(), Some(Ok(applied.version_before)));
                }
                Err(error) => prop_assert_eq!(expected[index].clone(), Some(Err(error))),
            }
        }
        for (index, receipt) in receipts {
            let answer = receipt.poll().expect("all tickets were used or dropped");
            let answer = answer.map(|applied| applied.version_before);
            prop_assert_eq!(expected[index].clone(), Some(answer));
        }
        prop_assert_eq!(state(&store, store.planes()), state(&twin, store.planes()));
    }
}
