-- What of a node's facts was last told to those who listen: facts come up after every report, and most reports change none.
CREATE TABLE IF NOT EXISTS node_facts_told (
    node_id uuid        PRIMARY KEY REFERENCES nodes,
    -- A digest of all that facts are made of.
    digest  text        NOT NULL,
    told_at timestamptz NOT NULL
);
