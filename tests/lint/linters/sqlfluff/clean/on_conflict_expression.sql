insert into jobs.job (id, name, idempotency_key)
values (@id::uuid, @name::text, sqlc.narg('key')::text)
on conflict (name, coalesce(idempotency_key, '')) where state = 'ready' do nothing
returning id;
