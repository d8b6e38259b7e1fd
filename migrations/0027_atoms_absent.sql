-- Devices that are absent and still booked are forgotten when they are given back: looked for at each such time, and hardly ever
-- there. By itself: nothing else waits while it is built.
CREATE INDEX IF NOT EXISTS atoms_absent ON atoms (node_id) WHERE health = 'absent';
