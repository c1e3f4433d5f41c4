insert into jobs.counter as c (name, outcome, amount)
values (@name::text, @outcome::text, 1)
on conflict (name, outcome) do update
    set amount = c.amount + excluded.amount
    where c.amount < 100
returning c.amount;
