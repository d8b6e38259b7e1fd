//! User data on its way to instances. It is asked for when everything else is there, and is nowhere but in memory until it is in
//! the guest's seed; a process that dies in between asks again.

use std::collections::{BTreeMap, BTreeSet};

use agent::secrets::{Desk, SecretTold, SecretWanted};
use model::InstanceId;
use runtimes::UserData;
use wire::proto::agent::InstanceSpec;

use super::port::Trouble;

const REFUSED: &str = "SecretRefused";
const WAITS: &str = "UserDataComing";

#[derive(Default)]
pub(super) struct Telling {
    /// What this pass waits for.
    wants: BTreeSet<SecretWanted>,
    /// Refused for this revision of its entry: asked for again at the next.
    refused: BTreeMap<InstanceId, (u64, String)>,
    /// Why there was none the last time.
    later: BTreeMap<InstanceId, String>,
}

impl Telling {
    /// The instance's user data, when it has come. Taken once: a define that fails has it asked for again.
    pub fn user_data(
        &mut self,
        id: InstanceId,
        entry: &InstanceSpec,
        desk: &Desk,
    ) -> Result<UserData, Trouble> {
        let wanted = wanted(id, entry)?;
        if let Some((_, message)) = self.refused.get(&id).filter(|(revision, _)| *revision == entry.revision)
        {
            return Err(refused(message));
        }
        match desk.take(&wanted) {
            Some(SecretTold::Value(value)) => {
                self.later.remove(&id);
                UserData::new(value.into_bytes()).map_err(|err| refused(&err.to_string()))
            }
            Some(SecretTold::Refused { message }) => {
                let trouble = refused(&message);
                self.later.remove(&id);
                self.refused.insert(id, (entry.revision, message));
                Err(trouble)
            }
            Some(SecretTold::Later { message }) => {
                self.later.insert(id, message);
                Err(self.waits(id, wanted))
            }
            None => Err(self.waits(id, wanted)),
        }
    }

    fn waits(&mut self, id: InstanceId, wanted: SecretWanted) -> Trouble {
        self.wants.insert(wanted);
        let why = self.later.get(&id).map_or("it is asked for", String::as_str);
        Trouble { reason: WAITS, message: format!("its user data has not come: {why}"), retryable: true }
    }

    /// What is to be asked for. Nothing stays that this pass did not want.
    pub fn end(&mut self, desk: &Desk, is_there: impl Fn(InstanceId) -> bool) -> Vec<SecretWanted> {
        desk.keep(&self.wants);
        self.refused.retain(|id, _| is_there(*id));
        self.later.retain(|id, _| is_there(*id));
        std::mem::take(&mut self.wants).into_iter().collect()
    }
}

fn refused(why: &str) -> Trouble {
    let message = format!("the control plane does not tell this host its user data: {why}");
    Trouble { reason: REFUSED, message, retryable: false }
}

fn wanted(id: InstanceId, entry: &InstanceSpec) -> Result<SecretWanted, Trouble> {
    let invalid = |what: &str| Trouble {
        reason: "InvalidInstance",
        message: format!("{what} is none that this daemon knows: update it"),
        retryable: false,
    };
    Ok(SecretWanted {
        instance_id: id,
        allocation_id: entry.allocation_id.parse().map_err(|_| invalid("its allocation"))?,
        secret_id: wire::secret::of_reference(&entry.user_data).ok_or_else(|| invalid("its user data"))?,
    })
}
