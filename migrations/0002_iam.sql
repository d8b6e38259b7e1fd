-- Tenants, people and service accounts, their tokens, policies and bindings, and idempotency keys.

CREATE TABLE IF NOT EXISTS tenants (
  tenant_id  uuid PRIMARY KEY,
  parent_id  uuid REFERENCES tenants,
  name       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (parent_id, name)
);
-- One root: the tenant without a parent.
CREATE UNIQUE INDEX IF NOT EXISTS tenants_one_root ON tenants ((parent_id IS NULL)) WHERE parent_id IS NULL;

CREATE TABLE IF NOT EXISTS users (
  user_id     uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL REFERENCES tenants,
  kind        text NOT NULL CHECK (kind IN ('person', 'service')),
  name        text NOT NULL,
  email       text,
  disabled_at timestamptz,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, name)
);

CREATE TABLE IF NOT EXISTS tokens (
  token_id      uuid PRIMARY KEY,
  user_id       uuid NOT NULL REFERENCES users,
  name          text NOT NULL,
  -- Of the secret part. The secret is 256 random bits, so a plain hash is enough.
  secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
  created_at    timestamptz NOT NULL DEFAULT compute_now(),
  expires_at    timestamptz NOT NULL,
  last_used_at  timestamptz,
  revoked_at    timestamptz
);
CREATE INDEX IF NOT EXISTS tokens_by_user ON tokens (user_id, token_id DESC);

CREATE TABLE IF NOT EXISTS policies (
  policy_id  uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL REFERENCES tenants,
  name       text NOT NULL,
  -- Goes up with each put; compiled policies are kept per version.
  version    bigint NOT NULL DEFAULT 1,
  document   jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT compute_now(),
  updated_at timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, name)
);

-- A user holds a policy in a tenant: it speaks about that tenant's resources and its descendants'.
CREATE TABLE IF NOT EXISTS bindings (
  binding_id uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL REFERENCES tenants,
  policy_id  uuid NOT NULL REFERENCES policies ON DELETE RESTRICT,
  user_id    uuid NOT NULL REFERENCES users,
  created_at timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, policy_id, user_id)
);
CREATE INDEX IF NOT EXISTS bindings_by_user ON bindings (user_id);

-- Goes up with any change to users, tokens, policies or bindings: caches compare it.
CREATE TABLE IF NOT EXISTS iam_version (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version bigint NOT NULL DEFAULT 1
);
INSERT INTO iam_version DEFAULT VALUES ON CONFLICT DO NOTHING;

-- A create's key points at what it made.
CREATE TABLE IF NOT EXISTS idempotency (
  tenant_id      uuid NOT NULL REFERENCES tenants,
  user_id        uuid NOT NULL REFERENCES users,
  key            text NOT NULL CHECK (length(key) BETWEEN 1 AND 128),
  method         text NOT NULL,
  request_sha256 bytea NOT NULL,
  resource       text NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT compute_now(),
  PRIMARY KEY (tenant_id, user_id, key)
);
CREATE INDEX IF NOT EXISTS idempotency_by_age ON idempotency (created_at);
