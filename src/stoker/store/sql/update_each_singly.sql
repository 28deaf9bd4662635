-- Set a number in one row.
-- Plan: primary key.
UPDATE {table} SET {column} = %s{more} WHERE {key} = %s
