-- What changed since a number is asked for before each booking, and comes by an index whatever the number is: planned for each
-- number anew, it took longer to plan than to run.
ALTER FUNCTION books_changed(bigint) SET plan_cache_mode = 'force_generic_plan';
