select 1 from;
