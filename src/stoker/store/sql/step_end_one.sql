-- Record the result of one step (SQLite, MariaDB and MySQL). The caller has locked its workflow.
-- Plan: primary key.
UPDATE stoker_step SET state = %s, {value} = %s, cause = %s WHERE id = %s
