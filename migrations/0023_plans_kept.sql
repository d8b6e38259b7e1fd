-- These find their rows by an index whatever they are asked for: planned for each list of keys and each number anew, as they were, they
-- took longer to plan than to run.
ALTER FUNCTION books_changed(bigint) SET plan_cache_mode = 'force_generic_plan';
ALTER FUNCTION work_take(text, bigint, integer, boolean) SET plan_cache_mode = 'force_generic_plan';
