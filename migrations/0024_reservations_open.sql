-- Whether anything of a pool has not ended is asked with the pool's row locked. By itself: nothing else waits while it is built.
CREATE INDEX IF NOT EXISTS reservations_open_by_pool ON reservations (pool_id) WHERE ended_at IS NULL;
