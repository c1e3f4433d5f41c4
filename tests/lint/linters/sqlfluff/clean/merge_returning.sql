merge into jobs.counter as c
using jobs.settled as s on c.name = s.name
when matched then
    update set amount = c.amount + 1
returning c.name, c.amount;
