set transaction isolation level read committed;
