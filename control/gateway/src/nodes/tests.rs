use uuid::Uuid;

use super::*;

fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

#[test]
fn a_third_connection_of_a_node_cuts_its_oldest_and_nobody_elses() {
    let connections = Connections::default();
    let kills: [CancellationToken; 4] = Default::default();
    let neighbour = connections.enter(node(2), kills[3].clone());
    let first = connections.enter(node(1), kills[0].clone());
    let second = connections.enter(node(1), kills[1].clone());
    assert!(!kills[0].is_cancelled());
    let third = connections.enter(node(1), kills[2].clone());
    assert_eq!(kills.each_ref().map(CancellationToken::is_cancelled), [true, false, false, false]);
    drop((first, second, third, neighbour));
    assert!(connections.0.lock().unwrap().of_node.is_empty());
}
