merge into jobs.counter as c
using (select @name::text as name, @amount::bigint as amount) as added
    on c.name = added.name
when matched and added.amount = 0 then
    delete
when matched then
    update set amount = c.amount + added.amount
when not matched then
    insert (name, amount) values (added.name, added.amount);
