-- Write to one row its number.
-- Plan: primary key.
UPDATE {table} SET {column} = %s{more} WHERE {key} = %s
