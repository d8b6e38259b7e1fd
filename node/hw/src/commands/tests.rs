use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn run(commands: &HostCommands, script: &str) -> Result<CommandOutput, CommandError> {
    runtime().block_on(commands.run("sh", &["-c", script]))
}

#[test]
fn a_program_answers_with_its_output_and_code() {
    let output = run(&HostCommands::new(), "echo out; echo err >&2; exit 3").unwrap();
    assert_eq!(output, CommandOutput { code: Some(3), stdout: b"out\n".into(), stderr: b"err\n".into() });
    let output = run(&HostCommands::new(), "kill -9 $$").unwrap();
    assert_eq!(output.code, None);
    assert!(!output.success());
}

#[test]
fn a_program_sees_nothing_of_our_environment() {
    let output = run(&HostCommands::new(), "echo ${HOME:-none} $LC_ALL; cat").unwrap();
    assert_eq!(output.stdout, b"none C\n");
}

#[test]
fn a_program_that_does_not_answer_is_given_up() {
    let commands = HostCommands::new().with_bounds(Duration::from_millis(200), 100);
    let error = run(&commands, "exec tail -f /dev/null").unwrap_err();
    assert!(matches!(error, CommandError::TimedOut { limit_ms: 200, .. }), "{error}");
}

#[test]
fn a_child_that_keeps_the_pipe_open_does_not_hold_us() {
    let commands = HostCommands::new().with_bounds(Duration::from_millis(300), 100);
    let error = run(&commands, "tail -f /dev/null & exit 0").unwrap_err();
    assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
}

#[test]
fn output_without_end_is_cut() {
    let commands = HostCommands::new().with_bounds(Duration::from_secs(20), 1000);
    let error = run(&commands, "yes").unwrap_err();
    assert!(matches!(error, CommandError::TooMuchOutput { max: 1000, .. }), "{error}");
}

#[test]
fn a_missing_program_is_told_apart_from_a_forbidden_one() {
    let commands = HostCommands::new();
    let error = runtime().block_on(commands.run("no-such-program-here", &[])).unwrap_err();
    assert!(matches!(error, CommandError::NotFound { .. }), "{error}");
    let error = runtime().block_on(commands.run("/etc/passwd", &[])).unwrap_err();
    assert!(matches!(error, CommandError::PermissionDenied { .. }), "{error}");
}
