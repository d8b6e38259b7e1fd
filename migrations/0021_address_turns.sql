-- The address that was leased last, of a pool's addresses or of a host's own: the next one comes after it. An address that was
-- given back is another machine's as late as can be, since neighbours remember for a while whose it was.
CREATE TABLE IF NOT EXISTS ip_turns (
  pool_id  uuid NOT NULL REFERENCES pools ON DELETE CASCADE,
  -- The host where each host has the pool's addresses to itself, else the pool.
  scope_id uuid NOT NULL,
  last     inet NOT NULL,
  PRIMARY KEY (pool_id, scope_id)
);
