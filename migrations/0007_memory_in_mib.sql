-- Memory is asked for to the MiB: what was whole GiB is 1,024 times as many.
DO $$
BEGIN
  IF EXISTS (SELECT FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = 'reservations' AND column_name = 'memory_gib') THEN
    ALTER TABLE reservations RENAME COLUMN memory_gib TO memory_mib;
    UPDATE reservations SET memory_mib = memory_mib * 1024 WHERE memory_mib > 0;
  END IF;
END $$;
