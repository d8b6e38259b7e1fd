-- Sites, pools, joining, nodes, sessions, specs, commands, and what nodes report.

CREATE TABLE IF NOT EXISTS sites (
  site_id    uuid PRIMARY KEY,
  name       text NOT NULL UNIQUE,
  created_at timestamptz NOT NULL DEFAULT compute_now()
);

CREATE TABLE IF NOT EXISTS pools (
  pool_id    uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL REFERENCES tenants,
  name       text NOT NULL,
  class      text NOT NULL CHECK (class IN ('gpu', 'vps-host', 'metal')),
  -- Placement, host reserve, lostAfter; validated by the code that writes it.
  policy     jsonb NOT NULL DEFAULT '{}',
  version    bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT compute_now(),
  updated_at timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, name)
);

CREATE TABLE IF NOT EXISTS join_tokens (
  join_token_id uuid PRIMARY KEY,
  site_id       uuid NOT NULL REFERENCES sites,
  -- Adopted into this pool at once when set.
  pool_id       uuid REFERENCES pools,
  role          text NOT NULL CHECK (role IN ('node', 'site')),
  secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
  uses_max      integer NOT NULL CHECK (uses_max BETWEEN 1 AND 100000),
  uses          integer NOT NULL DEFAULT 0 CHECK (uses BETWEEN 0 AND uses_max),
  -- A person approves each join.
  deferred      boolean NOT NULL DEFAULT false,
  created_by    uuid REFERENCES users,
  created_at    timestamptz NOT NULL DEFAULT compute_now(),
  expires_at    timestamptz NOT NULL,
  revoked_at    timestamptz
);

CREATE TABLE IF NOT EXISTS nodes (
  node_id        uuid PRIMARY KEY,
  site_id        uuid NOT NULL REFERENCES sites,
  pool_id        uuid REFERENCES pools,
  role           text NOT NULL CHECK (role IN ('node', 'site')),
  name           text NOT NULL UNIQUE,
  hostname       text NOT NULL,
  state          text NOT NULL CHECK (state IN
                   ('joined', 'accepting', 'ready', 'unreachable', 'lost', 'revoked', 'removed')),
  cordoned_at    timestamptz,
  cordoned_by    text,
  cordon_reason  text,
  -- An automatic cordon names what ends it.
  cordon_exit    text,
  draining_at    timestamptz,
  quarantined_at timestamptz,
  quarantine_reason text,
  labels         jsonb NOT NULL DEFAULT '{}',
  hardware_key   bytea,
  -- The newest intent. Bumped only when the spec's bytes differ.
  generation     bigint NOT NULL DEFAULT 0,
  spec_hash      text,
  spec_body      bytea,
  spec_signature bytea,
  spec_at        timestamptz,
  -- The command that decides whether it may take work.
  acceptance_command_id uuid,
  created_at     timestamptz NOT NULL DEFAULT compute_now(),
  adopted_at     timestamptz,
  revoked_at     timestamptz,
  revoke_reason  text,
  removed_at     timestamptz
);
CREATE INDEX IF NOT EXISTS nodes_by_pool ON nodes (pool_id, node_id);

CREATE TABLE IF NOT EXISTS node_certs (
  -- Lowercase hex.
  serial      text PRIMARY KEY,
  node_id     uuid NOT NULL REFERENCES nodes,
  spki_der    bytea NOT NULL,
  spki_sha256 bytea NOT NULL,
  not_before  timestamptz NOT NULL,
  not_after   timestamptz NOT NULL,
  csr_sha256  bytea NOT NULL,
  -- The whole signed answer, replayed when the same CSR asks again.
  reply       bytea NOT NULL,
  issued_at   timestamptz NOT NULL DEFAULT compute_now(),
  revoked_at  timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS node_certs_one_per_csr ON node_certs (csr_sha256);
CREATE INDEX IF NOT EXISTS node_certs_by_node ON node_certs (node_id, issued_at DESC);
CREATE INDEX IF NOT EXISTS node_certs_by_key ON node_certs (spki_sha256);

CREATE TABLE IF NOT EXISTS join_requests (
  join_request_id uuid PRIMARY KEY,
  csr_sha256      bytea NOT NULL UNIQUE,
  join_token_id   uuid NOT NULL REFERENCES join_tokens,
  role            text NOT NULL,
  hostname        text NOT NULL,
  agent_version   text NOT NULL,
  source_ip       text NOT NULL,
  state           text NOT NULL CHECK (state IN ('pending', 'approved', 'rejected', 'issued')),
  decided_by      uuid REFERENCES users,
  decided_at      timestamptz,
  node_id         uuid REFERENCES nodes,
  created_at      timestamptz NOT NULL DEFAULT compute_now(),
  last_seen_at    timestamptz NOT NULL DEFAULT compute_now(),
  expires_at      timestamptz NOT NULL
);

-- What a gateway cannot answer itself, since it holds no key: a worker answers.
CREATE TABLE IF NOT EXISTS join_inbox (
  inbox_id    uuid PRIMARY KEY,
  kind        text NOT NULL CHECK (kind IN ('join', 'renew', 'fresh')),
  gateway_id  uuid NOT NULL,
  request     bytea NOT NULL CHECK (octet_length(request) <= 32768),
  source_ip   text NOT NULL,
  -- The serial of the certificate the connection was made with; set for a renewal.
  peer_serial text,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  -- An encoded reply, or a refusal: a code and what to say.
  reply       bytea,
  refusal     text,
  answered_at timestamptz
);
CREATE INDEX IF NOT EXISTS join_inbox_open ON join_inbox (created_at) WHERE answered_at IS NULL;

-- A gateway process; every write it makes is guarded by its epoch here.
CREATE TABLE IF NOT EXISTS gateways (
  gateway_id uuid PRIMARY KEY,
  epoch      bigint NOT NULL,
  address    text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT compute_now(),
  expires_at timestamptz NOT NULL,
  drained_at timestamptz
);
CREATE SEQUENCE IF NOT EXISTS gateway_epoch;
CREATE SEQUENCE IF NOT EXISTS session_epoch;

CREATE TABLE IF NOT EXISTS node_sessions (
  node_id         uuid PRIMARY KEY REFERENCES nodes,
  gateway_id      uuid NOT NULL,
  gateway_epoch   bigint NOT NULL,
  session_epoch   bigint NOT NULL,
  cert_serial     text NOT NULL,
  journal_id      uuid NOT NULL,
  incarnation_id  uuid NOT NULL,
  boot_id         text NOT NULL,
  connected_at    timestamptz NOT NULL DEFAULT compute_now(),
  closed_at       timestamptz,
  last_heartbeat_at timestamptz NOT NULL DEFAULT compute_now(),
  -- Heartbeats since it was last unreachable.
  heartbeats_good integer NOT NULL DEFAULT 0,
  acked_event_seq bigint NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS node_sessions_by_gateway ON node_sessions (gateway_id) WHERE closed_at IS NULL;

-- What the node last said of itself; latest wins. Written by gateways.
CREATE TABLE IF NOT EXISTS node_status (
  node_id             uuid PRIMARY KEY REFERENCES nodes,
  session_epoch       bigint NOT NULL,
  agent_version       text NOT NULL DEFAULT '',
  protocol            integer NOT NULL DEFAULT 0,
  capabilities        text[] NOT NULL DEFAULT '{}',
  trust_version       bigint NOT NULL DEFAULT 0,
  applied_generation  bigint NOT NULL DEFAULT 0,
  -- Only upwards, whichever session a late report comes on.
  observed_generation bigint NOT NULL DEFAULT 0,
  applied_spec_hash   text NOT NULL DEFAULT '',
  sections            jsonb NOT NULL DEFAULT '[]',
  conditions          jsonb NOT NULL DEFAULT '[]',
  pressure            jsonb,
  -- Hash of the report without its gauges: an equal one is no news.
  status_key          text NOT NULL DEFAULT '',
  reported_at         timestamptz NOT NULL DEFAULT compute_now()
);

CREATE TABLE IF NOT EXISTS node_inventory (
  node_id     uuid NOT NULL REFERENCES nodes,
  section     text NOT NULL,
  hash        text NOT NULL,
  content     jsonb NOT NULL,
  reported_at timestamptz NOT NULL DEFAULT compute_now(),
  PRIMARY KEY (node_id, section)
);

-- What nodes observed on their own, as they sent it. A gateway stores it; a worker handles it, in order.
CREATE TABLE IF NOT EXISTS node_events (
  node_id     uuid NOT NULL REFERENCES nodes,
  journal_id  uuid NOT NULL,
  seq         bigint NOT NULL,
  class       smallint NOT NULL,
  report      bytea NOT NULL,
  signature   bytea,
  key_sha256  bytea,
  observed_at timestamptz NOT NULL,
  received_at timestamptz NOT NULL DEFAULT compute_now(),
  handled_at  timestamptz,
  PRIMARY KEY (node_id, journal_id, seq)
);
CREATE INDEX IF NOT EXISTS node_events_open ON node_events (node_id, received_at, seq) WHERE handled_at IS NULL;

CREATE TABLE IF NOT EXISTS commands (
  command_id     uuid PRIMARY KEY,
  seq            bigint GENERATED ALWAYS AS IDENTITY,
  node_id        uuid NOT NULL REFERENCES nodes,
  kind           text NOT NULL,
  lane           text NOT NULL,
  destructive    boolean NOT NULL,
  state          text NOT NULL DEFAULT 'pending' CHECK (state IN
                   ('pending', 'dispatched', 'acked', 'running',
                    'succeeded', 'failed', 'rejected', 'cancelled', 'expired')),
  -- The signed bytes, never changed once written.
  body           bytea NOT NULL,
  signature      bytea NOT NULL,
  not_before     timestamptz NOT NULL,
  not_after      timestamptz NOT NULL,
  timeout_at     timestamptz NOT NULL,
  min_generation bigint NOT NULL DEFAULT 0,
  created_by     text NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT compute_now(),
  -- The session it was last sent on.
  session_epoch  bigint,
  attempts       integer NOT NULL DEFAULT 0,
  dispatched_at  timestamptz,
  settled_at     timestamptz,
  cancel_requested_at timestamptz,
  cancel_reason  text,
  -- Exactly as received.
  result         bytea,
  result_signature bytea,
  result_key_sha256 bytea,
  result_state   smallint,
  reason         text NOT NULL DEFAULT '',
  message        text NOT NULL DEFAULT '',
  boot_id        text,
  -- Settled and its consequences drawn by a worker.
  handled_at     timestamptz
);
CREATE INDEX IF NOT EXISTS commands_pending ON commands (node_id, seq) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS commands_in_flight ON commands (timeout_at)
  WHERE state IN ('pending', 'dispatched', 'acked', 'running');
CREATE INDEX IF NOT EXISTS commands_by_node ON commands (node_id, seq DESC);
CREATE INDEX IF NOT EXISTS commands_unhandled ON commands (settled_at) WHERE settled_at IS NOT NULL AND handled_at IS NULL;

-- The signed trust bundles; the highest version is the current one.
CREATE TABLE IF NOT EXISTS trust_bundles (
  version    bigint PRIMARY KEY,
  -- An encoded signed message.
  message    bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT compute_now()
);

-- A node that holds intent newer than this database: the intent itself with our signature over it, for a worker to judge.
-- Proved, the database is older than its nodes; unproved, the node alone is quarantined.
CREATE TABLE IF NOT EXISTS restore_claims (
  node_id    uuid PRIMARY KEY REFERENCES nodes,
  generation bigint NOT NULL,
  epoch      bigint NOT NULL,
  body       bytea NOT NULL,
  signature  bytea NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT compute_now(),
  judged_at  timestamptz,
  proved     boolean
);
