select
	1;
