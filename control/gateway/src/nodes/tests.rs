use uuid::Uuid;

use super::*;

fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

#[test]
fn one_connection_too_many_cuts_its_nodes_oldest_and_nobody_elses() {
    let connections = Connections::default();
    let neighbours = CancellationToken::new();
    let neighbour = connections.enter(node(2), neighbours.clone());
    let kills: Vec<CancellationToken> = (0..=EACH_MAX).map(|_| CancellationToken::new()).collect();
    let entered: Vec<Entered> = kills.iter().map(|kill| connections.enter(node(1), kill.clone())).collect();
    let cut: Vec<usize> = (0..=EACH_MAX).filter(|at| kills[*at].is_cancelled()).collect();
    assert_eq!((cut, neighbours.is_cancelled()), (vec![0], false));
    drop((entered, neighbour));
    assert!(connections.0.lock().unwrap().of_node.is_empty());
}
