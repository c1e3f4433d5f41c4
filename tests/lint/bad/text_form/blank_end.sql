select 1;


