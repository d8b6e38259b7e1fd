-- What each role may do, applied as a whole after every migration run: what is not here is revoked.
--
-- bc_gateway is a gateway-only process: it delivers stored bytes and stores what nodes answer. A statement it may
-- not run fails with SQLSTATE 42501. A whole-table UPDATE is granted only where every column is its own.

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM bc_gateway;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM bc_gateway;
GRANT USAGE ON SCHEMA public TO bc_gateway;

-- foundation
GRANT SELECT ON schema_migrations, deployment TO bc_gateway;
GRANT INSERT ON outbox TO bc_gateway;
