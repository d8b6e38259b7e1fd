use super::*;

const FREE: usize = HELLO_BYTES_FREE;

#[test]
fn large_hellos_share_a_budget_and_small_ones_need_none() {
    let budget = HelloBudget::new(1000);
    let large = Greeting::new(budget.clone());
    assert!(large.receive(FREE) && large.receive(1000));
    let other = Greeting::new(budget.clone());
    assert!(other.receive(FREE));
    assert!(!other.receive(1));
    drop(other);
    large.over();
    assert!(large.receive(usize::MAX));
    assert_eq!(budget.held.load(Ordering::SeqCst), 0);
    let third = Greeting::new(budget.clone());
    assert!(third.receive(FREE + 1000));
    drop(third);
    assert_eq!(budget.held.load(Ordering::SeqCst), 0);
}
