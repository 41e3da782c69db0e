-- Transitions of a flight, one statement each. Each head names the move, then what "no row" means.
-- Only clock_timestamp() of this server judges leases and TTLs; durations come in as seconds.
-- Every write of an owner carries id, generation and owner, so that a late writer matches no row.
-- `{name}` stands for the fragment of that name.

-- fragment: flight_columns
-- A row as FlightSnapshot reads it; `f` is the flight.
f.id, f.generation, f.status, f.owner, f.attempts, f.takeovers,
extract(epoch from f.lease_expires_at - clock_timestamp())::float8 as lease_remaining,
extract(epoch from f.expires_at - clock_timestamp())::float8 as outcome_remaining,
extract(epoch from f.retry_at - clock_timestamp())::float8 as retry_remaining,
case f.status when 'pending' then extract(epoch from clock_timestamp() - f.created_at)::float8 end as pending_age,
extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8 as server_age,
f.forgotten, f.result, f.encoding, f.checksum, f.size, f.error_type, f.error_message, f.retryable,
f.model, f.input_tokens, f.output_tokens, f.cost, f.arguments is not null as has_arguments, f.result_location,
f.trace_parent

-- fragment: open_flight
-- The flight that a grant was decided on, if it is still open to one: the row of that generation and
-- status, its lease over, its outcome past, forgotten, due for a retry or not good enough for a fresh caller. A locked
-- row is passed over.
select f.id, f.status as was
from singleflight_flight f
where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint and f.status = %(status)s::text
  and case f.status
      when 'running' then f.lease_expires_at <= clock_timestamp() - make_interval(secs => %(grace)s::float8)
      when 'pending' then
          %(starts_pending)s::bool
          or f.created_at <= clock_timestamp() - make_interval(secs => %(pending_timeout)s::float8)
      when 'cancelled' then true
      else f.forgotten or %(is_fresh)s::bool or f.expires_at <= clock_timestamp() or (f.retryable and f.retry_at <= clock_timestamp())
      end
for update skip locked

-- fragment: emptied
-- What a new generation leaves behind.
settled_at = null, expires_at = null, retry_at = null, forgotten = false, progress = null,
result = null, encoding = '', checksum = null, size = null, result_location = '',
error_type = '', error_message = '', retryable = false,
model = '', input_tokens = 0, output_tokens = 0, cost = 0,
joins = case when o.was in ('running', 'pending') then f.joins else 0 end, replays = 0,
takeovers = case o.was when 'running' then f.takeovers + 1 when 'pending' then f.takeovers else 0 end

-- fragment: new_flight
-- The row that a claim inserts, if there is none.
insert into singleflight_flight as f
    (digest, stage, scope, label, status, generation, owner, attempts, lease_expires_at, heartbeat_at, started_at,
     trace_parent)
select %(digest)s, %(stage)s::text, %(scope)s::text, %(label)s::text, 'running',
    nextval('singleflight_generation_seq'), %(owner)s::text, 1,
    clock_timestamp() + make_interval(secs => %(lease)s::float8), clock_timestamp(), clock_timestamp(),
    %(trace_parent)s::text
where not exists (select from seen)

-- fragment: granted_event
-- The audit row of a claim's grant.
insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner)
select ins.id, %(digest)s, %(stage)s::text, ins.generation, 'granted', ins.owner from ins

-- name: claim_flight
-- nothing -> running; a visible row is read and left alone (ON CONFLICT against it would wait for its writer).
-- No row: a rival committed inside this statement. Send it again at once.
with seen as materialized (
    select {flight_columns} from singleflight_flight f where f.digest = %(digest)s
), ins as (
    {new_flight} on conflict (digest) do nothing returning {flight_columns}
), ev as ({granted_event})
select true, ins.* from ins union all select false, seen.* from seen

-- name: find_flight
-- No row: there is no flight of this key.
select {flight_columns} from singleflight_flight f where f.digest = %(digest)s

-- name: lock_stage
-- Claims of a stage with `max_concurrency` go one by one: each counts in a statement of its own what the one before it
-- has committed. Sent together with the claim, in one transaction; the number is the stage's. No row means nothing.
select pg_advisory_xact_lock(%(stage_lock)s::bigint)

-- fragment: room
-- Whether one more call of the stage may run: the lock is held, and this statement sees all grants before it.
room as materialized (
    select count(*) < %(most)s::bigint as is_free from singleflight_flight r
    where r.stage = %(stage)s::text and r.status in ('pending', 'running') and r.status = 'running'
      and r.lease_expires_at > clock_timestamp()
)

-- name: claim_flight_in_room
-- As claim_flight, under lock_stage: nothing -> running only while there is room.
-- No row never comes: where the claim has none there are nulls, as there is no room or a rival committed meanwhile.
with {room}, seen as materialized (
    select {flight_columns} from singleflight_flight f where f.digest = %(digest)s
), ins as (
    {new_flight} and (select is_free from room) on conflict (digest) do nothing returning {flight_columns}
), ev as ({granted_event})
select room.is_free, c.* from room
left join (select true as is_new, ins.* from ins union all select false, seen.* from seen) c on true

-- name: submit_flight
-- nothing -> pending; a visible row is read and left alone.
-- No row: a rival committed inside this statement. Send it again at once.
with seen as materialized (
    select {flight_columns} from singleflight_flight f where f.digest = %(digest)s
), ins as (
    insert into singleflight_flight as f
        (digest, stage, scope, label, status, generation, arguments, created_at, sent_at)
    select %(digest)s, %(stage)s::text, %(scope)s::text, %(label)s::text, 'pending',
        nextval('singleflight_generation_seq'), %(arguments)s::jsonb, clock_timestamp(), clock_timestamp()
    where not exists (select from seen)
    on conflict (digest) do nothing
    returning {flight_columns}
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind)
    select ins.id, %(digest)s, %(stage)s::text, ins.generation, 'submitted' from ins
)
select true, ins.* from ins union all select false, seen.* from seen

-- fragment: granting
-- pending, running with its lease over, or settled and past -> running, under a new generation.
update singleflight_flight f set
    {emptied},
    status = 'running',
    generation = greatest(nextval('singleflight_generation_seq'), f.generation + 1),
    owner = %(owner)s::text,
    attempts = case when %(again)s::bool then f.attempts + 1 else 1 end,
    created_at = case when %(again)s::bool or o.was = 'pending' then f.created_at else clock_timestamp() end,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s::float8),
    heartbeat_at = clock_timestamp(), started_at = clock_timestamp(), trace_parent = %(trace_parent)s::text
from o where f.id = o.id

-- fragment: regranted_event
-- The audit row of a new generation of a row.
insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner)
select g.id, g.digest, g.stage, g.generation, %(kind)s::text, g.owner from granted g

-- name: grant_flight
-- pending, running with its lease over, or settled and past -> running, under a new generation.
-- No row: the row moved since it was read, or another caller is moving it. Read it again.
with o as materialized ({open_flight}), granted as (
    {granting} returning f.digest, f.stage, {flight_columns}
), ev as ({regranted_event})
select {flight_columns_of_granted} from granted f

-- name: grant_flight_in_room
-- As grant_flight, under lock_stage, while there is room.
-- No row never comes: where nothing was granted there are nulls, as there is no room or the row moved.
with {room}, o as materialized ({open_flight}), granted as (
    {granting} and (select is_free from room) returning f.digest, f.stage, {flight_columns}
), ev as ({regranted_event})
select room.is_free or not exists (select from o), {flight_columns_of_granted} from room left join granted f on true

-- fragment: flight_columns_of_granted
-- The columns of `granted` as FlightSnapshot reads them.
f.id, f.generation, f.status, f.owner, f.attempts, f.takeovers, f.lease_remaining, f.outcome_remaining,
f.retry_remaining, f.pending_age, f.server_age, f.forgotten, f.result, f.encoding, f.checksum, f.size,
f.error_type, f.error_message, f.retryable, f.model, f.input_tokens, f.output_tokens, f.cost, f.has_arguments, f.result_location,
f.trace_parent

-- name: queue_flight
-- settled and past, or running with its lease over (the sweep's grace included) -> pending.
-- No row: the row moved since it was read, or another caller is moving it.
with o as materialized ({open_flight}), queued as (
    update singleflight_flight f set
        {emptied},
        status = 'pending',
        generation = greatest(nextval('singleflight_generation_seq'), f.generation + 1),
        owner = '', lease_expires_at = null, heartbeat_at = null, started_at = null, trace_parent = '',
        created_at = clock_timestamp(), sent_at = clock_timestamp(),
        arguments = coalesce(%(arguments)s::jsonb, f.arguments)
    from o where f.id = o.id
    returning f.digest, f.stage, {flight_columns}
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select q.id, q.digest, q.stage, q.generation, %(kind)s::text, %(actor)s::text from queued q
)
select {flight_columns_of_granted} from queued f

-- name: read_flight
-- No row: the flight is gone (purged).
select {flight_columns} from singleflight_flight f where f.id = %(flight_id)s

-- name: poll_flights
-- A flight that returns no row is gone.
select f.id, f.generation, f.status, f.owner,
    extract(epoch from f.lease_expires_at - clock_timestamp())::float8,
    case f.status when 'pending' then extract(epoch from clock_timestamp() - f.created_at)::float8 end,
    f.forgotten
from singleflight_flight f where f.id = any(%(flight_ids)s::bigint[])

-- name: renew_leases
-- running -> running. A lease that returns no row is locked by somebody or lost: read the row to know.
with due as (
    select * from unnest(%(flight_ids)s::bigint[], %(generations)s::bigint[], %(leases)s::float8[],
        %(progress)s::jsonb[]) as d (id, generation, lease, progress)
), held as materialized (
    select f.id, d.lease, d.progress
    from singleflight_flight f join due d on d.id = f.id and d.generation = f.generation
    where f.owner = %(owner)s::text and f.status = 'running'
    for update of f skip locked
)
update singleflight_flight f
set lease_expires_at = clock_timestamp() + make_interval(secs => held.lease), heartbeat_at = clock_timestamp(),
    progress = coalesce(held.progress, f.progress)
from held where f.id = held.id
returning f.id

-- name: settle_flight
-- running -> succeeded, failed, timed_out or cancelled, by its owner.
-- No row: the lease is another's now, or an earlier try of this settle was stored. Read the row to know.
with settled as (
    update singleflight_flight f set
        status = %(status)s::text, settled_at = clock_timestamp(), lease_expires_at = null, arguments = null,
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s::float8),
        retry_at = case when %(retryable)s::bool
            then clock_timestamp() + make_interval(secs => %(retry_after)s::float8) end,
        retryable = %(retryable)s::bool, attempts = f.attempts + %(retries)s::int,
        result = %(payload)s, result_location = %(location)s::text,
        encoding = %(encoding)s::text, checksum = %(checksum)s, size = %(size)s::bigint,
        error_type = %(error_type)s::text, error_message = %(error_message)s::text,
        model = %(model)s::text, input_tokens = %(input_tokens)s::bigint,
        output_tokens = %(output_tokens)s::bigint, cost = %(cost)s::numeric
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint
      and f.owner = %(owner)s::text and f.status = 'running'
    returning f.id, f.digest, f.stage, f.forgotten
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner, detail)
    select s.id, s.digest, s.stage, %(generation)s::bigint, 'settled', %(owner)s::text, %(status)s::text
    from settled s
)
select s.forgotten from settled s

-- name: record_fence
-- The audit row of a refused settle, once per generation. No row: it was recorded before, or the flight is gone.
insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner, detail)
select f.id, f.digest, f.stage, %(generation)s::bigint, 'fenced', %(owner)s::text,
    case when f.generation = %(generation)s::bigint then 'the flight was ' || f.status
        else 'generation ' || f.generation || ' holds the flight' end
from singleflight_flight f
where f.id = %(flight_id)s::bigint
  and not exists (
      select from singleflight_flightevent e
      where e.flight_id = %(flight_id)s::bigint and e.generation = %(generation)s::bigint and e.kind = 'fenced'
  )
returning flight_id

-- name: forget_flight
-- any but pending -> the same, marked forgotten; expires_at stays, so that purge waits for late followers.
-- No row: there is no outcome to drop. The last column tells whether it was forgotten before.
with c as materialized (
    select f.id, f.forgotten as already
    from singleflight_flight f
    where (f.digest = %(digest)s::bytea or f.id = %(flight_id)s::bigint)
      and (%(generation)s::bigint is null or f.generation = %(generation)s::bigint)
      and (f.status = 'running' or (f.status not in ('pending', 'cancelled') and f.expires_at > clock_timestamp()))
    for update
), forgotten as (
    update singleflight_flight f set forgotten = true from c where f.id = c.id
    returning f.id, f.digest, f.stage, f.generation, c.already
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select x.id, x.digest, x.stage, x.generation, 'forgotten', %(actor)s::text from forgotten x where not x.already
)
select x.id, x.generation, x.digest, x.stage, x.already from forgotten x

-- name: expire_lease
-- running -> running with its lease over and no owner: its late owner is fenced at once, by hand.
-- The last column tells that it was so before. No row: the generation is not running any more.
with c as materialized (
    select f.id, f.digest, f.stage, f.generation, f.owner = '' as already
    from singleflight_flight f
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint and f.status = 'running'
    for update
), expired as (
    update singleflight_flight f set lease_expires_at = clock_timestamp(), owner = ''
    from c where f.id = c.id and not c.already
    returning f.id
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select c.id, c.digest, c.stage, c.generation, 'expired', %(actor)s::text from c join expired using (id)
)
select c.id, c.generation, c.digest, c.stage, c.already from c

-- name: cancel_flight
-- pending or running -> cancelled, by hand. Not retryable, unlike one that its owner released: those who wait for it are
-- told of it, and begin nothing. The last column tells that it was so before: a try whose reply was lost is sent again.
-- No row: the generation has ended otherwise, or another one holds the flight.
with c as materialized (
    select f.id, f.generation, f.digest, f.stage, f.owner, f.status = 'cancelled' as already
    from singleflight_flight f
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint
      and (f.status in ('pending', 'running') or (f.status = 'cancelled' and not f.retryable))
    for update
), cancelled as (
    update singleflight_flight f set
        status = 'cancelled', settled_at = clock_timestamp(), lease_expires_at = null, arguments = null,
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s::float8), retry_at = null, retryable = false,
        error_type = 'singleflight_app.FlightCancelled', error_message = %(message)s::text
    from c where f.id = c.id and not c.already
    returning f.id
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner, actor)
    select c.id, c.digest, c.stage, c.generation, 'cancelled', c.owner, %(actor)s::text from c where not c.already
)
select c.id, c.generation, c.digest, c.stage, c.already from c

-- name: allow_retry
-- failed or timed_out, in its TTL -> the same, with a retry due now, by hand. The last column tells that one was due.
-- No row: the failure is past, forgotten or replaced, or no failure.
with c as materialized (
    select f.id, f.generation, f.digest, f.stage,
        coalesce(f.retryable and f.retry_at <= clock_timestamp(), false) as already
    from singleflight_flight f
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint
      and f.status in ('failed', 'timed_out') and not f.forgotten and f.expires_at > clock_timestamp()
    for update
), allowed as (
    update singleflight_flight f set retryable = true, retry_at = clock_timestamp()
    from c where f.id = c.id and not c.already
    returning f.id
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select c.id, c.digest, c.stage, c.generation, 'retry_allowed', %(actor)s::text from c where not c.already
)
select c.id, c.generation, c.digest, c.stage, c.already from c

-- name: send_again
-- pending -> pending, marked as sent, by hand.
-- No row: the generation needs no worker any more.
with sent as (
    update singleflight_flight f set sent_at = clock_timestamp()
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint and f.status = 'pending'
    returning f.id, f.digest, f.stage, f.generation
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select s.id, s.digest, s.stage, s.generation, 'sent_again', %(actor)s::text from sent s
)
select s.id, s.generation, s.digest, s.stage from sent s

-- name: lose_flight
-- running with its lease over (the sweep's grace included) -> failed, as lost.
-- No row: the row moved since it was read, or another caller is moving it.
with c as materialized (
    select f.id from singleflight_flight f
    where f.id = %(flight_id)s::bigint and f.generation = %(generation)s::bigint and f.status = 'running'
      and f.lease_expires_at <= clock_timestamp() - make_interval(secs => %(grace)s::float8)
    for update skip locked
), lost as (
    update singleflight_flight f set
        status = 'failed', settled_at = clock_timestamp(), lease_expires_at = null, arguments = null,
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s::float8),
        error_type = 'singleflight_app.OwnerLost', error_message = %(message)s::text, retryable = false
    from c where f.id = c.id
    returning f.id, f.digest, f.stage, f.generation, f.owner
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner)
    select l.id, l.digest, l.stage, l.generation, 'lost', l.owner from lost l
)
select l.id, l.generation, l.digest, l.stage from lost l

-- name: expired_flights
-- What the sweep looks at: running flights whose lease is over, oldest first. No row: nothing to sweep.
select f.id, f.stage, f.generation, f.takeovers, f.arguments is not null,
    extract(epoch from clock_timestamp() - f.lease_expires_at)::float8,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8
from singleflight_flight f
where f.status = 'running' and f.lease_expires_at <= clock_timestamp()
order by f.lease_expires_at limit %(limit)s

-- name: unsent_flights
-- pending -> pending, marked as sent: messages that were lost, spaced. No row: nothing to send again.
with c as materialized (
    select f.id from singleflight_flight f
    where f.status = 'pending'
      and coalesce(f.sent_at, f.created_at) <= clock_timestamp() - make_interval(secs => %(spacing)s::float8)
    order by f.id limit %(limit)s
    for update skip locked
)
update singleflight_flight f set sent_at = clock_timestamp() from c where f.id = c.id
returning f.id

-- name: stored_arguments
-- No row: the flight is gone, or needs no worker any more.
select f.stage, f.scope, f.digest, f.arguments from singleflight_flight f
where f.id = %(flight_id)s::bigint and f.arguments is not null

-- name: live_flights
-- How many flights of each stage are running, running without a lease, and pending; the ages of the oldest running
-- and pending ones. No row: none is live.
select f.stage, count(*) filter (where f.status = 'running'),
    count(*) filter (where f.status = 'running' and f.lease_expires_at <= clock_timestamp()),
    count(*) filter (where f.status = 'pending'),
    extract(epoch from clock_timestamp() - min(f.started_at) filter (where f.status = 'running'))::float8,
    extract(epoch from clock_timestamp() - min(f.created_at) filter (where f.status = 'pending'))::float8
from singleflight_flight f where f.status in ('pending', 'running')
group by f.stage order by f.stage

-- name: watch_flights
-- Live flights for an operator's eyes, stuck ones first: running with the lease over, or pending past the stage's
-- pending_timeout. No row never comes: where none is live, the time stands alone.
select t.at, w.* from (select clock_timestamp() as at) t left join (
    select l.* from (
        select f.id, f.stage, f.status, f.owner,
            extract(epoch from clock_timestamp() - f.created_at)::float8,
            extract(epoch from clock_timestamp() - f.heartbeat_at)::float8,
            extract(epoch from f.lease_expires_at - clock_timestamp())::float8,
            f.generation, f.attempts, f.joins, f.progress,
            case f.status when 'running' then f.lease_expires_at <= clock_timestamp()
                else f.created_at <= clock_timestamp()
                    - make_interval(secs => coalesce(p.pending_timeout, %(timeout)s::float8))
            end as is_stuck
        from singleflight_flight f
        left join unnest(%(policies)s::text[], %(timeouts)s::float8[]) as p (stage, pending_timeout)
            on p.stage = f.stage
        where f.status in ('pending', 'running') and (%(stages)s::text[] is null or f.stage = any(%(stages)s::text[]))
    ) l (id, stage, status, owner, age, since_beat, lease_left, generation, attempts, joins, progress, is_stuck)
    where l.is_stuck or not %(only_stuck)s::bool
    order by l.is_stuck desc, l.id limit %(limit)s::bigint
) w on true
order by w.is_stuck desc, w.id

-- fragment: expired_flights_from
-- Flights of settled statuses that expired long enough ago, of some stages or all (null). A live status in the list
-- changes nothing. The time is asked once, in a subquery: asked per row, it could not bound a walk of the index.
from singleflight_flight f
where f.expires_at <= (select clock_timestamp() - %(keep)s::interval)
  and f.status = any(%(statuses)s::text[]) and f.status not in ('pending', 'running')
  and (%(stages)s::text[] is null or f.stage = any(%(stages)s::text[]))

-- fragment: old_events_from
-- Audit rows past their retention, of some stages or all (null).
from singleflight_flightevent e
where e.at <= (select clock_timestamp() - %(retention)s::interval)
  and (%(stages)s::text[] is null or e.stage = any(%(stages)s::text[]))

-- name: purge_flights
-- settled and past -> gone; its audit rows stay. Returns how many, the latest expiry among them, and the files that
-- held their results. Count 0: nothing is left, or all that is left is locked.
with doomed as materialized (
    select f.id {expired_flights_from} and f.expires_at >= coalesce(%(since)s::timestamptz, '-infinity')
    order by f.expires_at limit %(limit)s::bigint for update skip locked
), gone as (
    delete from singleflight_flight f using doomed where f.id = doomed.id returning f.expires_at, f.result_location
)
select count(*), max(expires_at), coalesce(array_agg(result_location) filter (where result_location <> ''), '{}') from gone

-- name: purge_events
-- Audit rows past their retention -> gone. Returns how many, and the latest time among them.
-- Count 0: nothing is left, or all that is left is locked.
with doomed as materialized (
    select e.id {old_events_from} and e.at >= coalesce(%(since)s::timestamptz, '-infinity')
    order by e.at limit %(limit)s::bigint for update skip locked
), gone as (
    delete from singleflight_flightevent e using doomed where e.id = doomed.id returning e.at
)
select count(*), max(at) from gone

-- name: count_expired_flights
-- What purge_flights would delete in the end, counted up to a limit.
select count(*) from (select {expired_flights_from} limit %(limit)s::bigint) as expired

-- name: count_expired_events
-- What purge_events would delete in the end, counted up to a limit.
select count(*) from (select {old_events_from} limit %(limit)s::bigint) as old

-- fragment: next_flights
-- The next rows of a walk by id, and those among them that are of a scope and of some stages (null: all). A stretch ends
-- at the limit's last match, else at the window's last row: no statement looks at more, whatever there is.
looked as materialized (
    select f.id, f.stage, f.scope from singleflight_flight f where f.id > %(after)s::bigint
    order by f.id limit %(window)s::bigint
), chosen as materialized (
    select l.id from looked l
    where (%(scope)s::text is null or l.scope = %(scope)s::text)
      and (%(stages)s::text[] is null or l.stage = any(%(stages)s::text[]))
    order by l.id limit %(limit)s::bigint
), stretch as (
    select case when count(*) = %(limit)s::bigint then max(c.id) else (select max(l.id) from looked l) end as until,
        count(*) as matched
    from chosen c
)

-- fragment: doomed_from
-- Those of `chosen` that go: settled, and expired long enough ago, or settled so with `unexpired`.
from singleflight_flight f join chosen c on c.id = f.id
where f.status = any(%(statuses)s::text[]) and f.status not in ('pending', 'running')
  and case when %(unexpired)s::bool then f.settled_at <= clock_timestamp() - %(older_than)s::interval
      else f.expires_at <= clock_timestamp() - %(keep)s::interval end

-- name: retire_flights
-- settled -> the same, marked forgotten if in its TTL: nobody is answered by it any more, and the floors can be raised
-- before it goes. No row never comes: a stretch without a flight to delete has nulls, and the last one no end.
with {next_flights}, doomed as materialized (
    select f.id, f.generation, f.digest, f.forgotten as already,
        f.status <> 'cancelled' and f.expires_at > clock_timestamp() as is_replayable
    {doomed_from} for update of f skip locked
), forgotten as (
    update singleflight_flight f set forgotten = true from doomed d
    where f.id = d.id and d.is_replayable and not d.already
    returning f.id, f.digest, f.stage, f.generation
), ev as (
    insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, actor)
    select x.id, x.digest, x.stage, x.generation, 'forgotten', %(actor)s::text from forgotten x
)
select s.until, s.matched, d.id, d.generation, d.digest, d.is_replayable from stretch s left join doomed d on true

-- name: erase_flights
-- settled -> gone, at its generation; its audit rows stay. Returns how many, and the files that held their results.
-- Count 0: they began anew meanwhile, or somebody holds them.
with due as (
    select * from unnest(%(flight_ids)s::bigint[], %(generations)s::bigint[]) as d (id, generation)
), doomed as materialized (
    select f.id from singleflight_flight f join due d on d.id = f.id and d.generation = f.generation
    where f.status not in ('pending', 'running') for update of f skip locked
), gone as (
    delete from singleflight_flight f using doomed where f.id = doomed.id returning f.result_location
)
select count(*), coalesce(array_agg(result_location) filter (where result_location <> ''), '{}') from gone

-- name: count_doomed_flights
-- What retire_flights would look at and find in its next stretch. No row never comes; the last stretch has no end.
with {next_flights}
select s.until, s.matched, (select count(*) {doomed_from}) from stretch s

-- name: note_blob
-- The name of a file that is about to be written for a generation. No row never comes: a name that is there was noted
-- by a try whose reply was lost, or by a storage that gives one name twice, and is the newer generation's.
insert into singleflight_blob as b (location, flight_id, generation)
values (%(location)s::text, %(flight_id)s::bigint, %(generation)s::bigint)
on conflict (location) do update set
    flight_id = excluded.flight_id, generation = excluded.generation, created_at = clock_timestamp()
returning b.id

-- name: erase_blobs
-- Names whose files are gone -> gone. A name that returns no row was erased before.
delete from singleflight_blob b where b.location = any(%(locations)s::text[]) returning b.id

-- name: noted_blobs
-- The next names, noted long enough ago, and whether a flight needs them: not if their generation is past, or ended
-- otherwise. While it runs, its owner may still settle. Needed ones count for the limit: a million of them is no
-- statement's work. No row: there is none from this id on.
with noted as materialized (
    select b.id, b.location, b.flight_id, b.generation from singleflight_blob b
    where b.id > %(after)s::bigint and b.created_at <= clock_timestamp() - make_interval(secs => %(grace)s::float8)
    order by b.id limit %(limit)s::bigint
)
select n.id, n.location, exists (
    select from singleflight_flight f
    where f.id = n.flight_id and f.generation = n.generation
      and (f.status = 'running' or f.result_location = n.location)
)
from noted n order by n.id

-- fragment: added_waits
-- Two lists of counts, added one by one; an older node's may be shorter, or no list.
select coalesce(jsonb_agg(coalesce(a.n::bigint, 0) + coalesce(b.n::bigint, 0) order by coalesce(a.i, b.i)), '[]')
from jsonb_array_elements_text(case jsonb_typeof(s.waits) when 'array' then s.waits else '[]' end)
    with ordinality as a (n, i)
full join jsonb_array_elements_text(excluded.waits) with ordinality as b (n, i) on b.i = a.i

-- fragment: added_runs
-- The same for durations of calls.
select coalesce(jsonb_agg(coalesce(a.n::bigint, 0) + coalesce(b.n::bigint, 0) order by coalesce(a.i, b.i)), '[]')
from jsonb_array_elements_text(case jsonb_typeof(s.runs) when 'array' then s.runs else '[]' end)
    with ordinality as a (n, i)
full join jsonb_array_elements_text(excluded.runs) with ordinality as b (n, i) on b.i = a.i

-- name: add_tallies
-- Adds a batch of the ledger. In the order of the key, so that two processes can't lock each other's rows crosswise.
insert into singleflight_stagestat as s
    (stage, hour, requests, calls, followers, replays, replays_process, replays_cache, failures, takeovers, fenced,
     degraded, wait_timeouts, waits, runs, tokens_spent, tokens_saved, tokens_wasted, cost_spent, cost_saved, cost_wasted)
select * from unnest(
    %(stage)s::text[], %(hour)s::timestamptz[], %(requests)s::bigint[], %(calls)s::bigint[], %(followers)s::bigint[],
    %(replays)s::bigint[], %(replays_process)s::bigint[], %(replays_cache)s::bigint[], %(failures)s::bigint[],
    %(takeovers)s::bigint[], %(fenced)s::bigint[], %(degraded)s::bigint[], %(wait_timeouts)s::bigint[],
    %(waits)s::jsonb[], %(runs)s::jsonb[], %(tokens_spent)s::bigint[], %(tokens_saved)s::bigint[],
    %(tokens_wasted)s::bigint[], %(cost_spent)s::numeric[], %(cost_saved)s::numeric[],
    %(cost_wasted)s::numeric[]) as t (stage, hour)
order by t.stage, t.hour
on conflict (stage, hour) do update set
    requests = s.requests + excluded.requests, calls = s.calls + excluded.calls,
    followers = s.followers + excluded.followers, replays = s.replays + excluded.replays,
    replays_process = s.replays_process + excluded.replays_process,
    replays_cache = s.replays_cache + excluded.replays_cache,
    failures = s.failures + excluded.failures, takeovers = s.takeovers + excluded.takeovers,
    fenced = s.fenced + excluded.fenced, degraded = s.degraded + excluded.degraded,
    wait_timeouts = s.wait_timeouts + excluded.wait_timeouts, waits = ({added_waits}), runs = ({added_runs}),
    tokens_spent = s.tokens_spent + excluded.tokens_spent, tokens_saved = s.tokens_saved + excluded.tokens_saved,
    tokens_wasted = s.tokens_wasted + excluded.tokens_wasted, cost_spent = s.cost_spent + excluded.cost_spent,
    cost_saved = s.cost_saved + excluded.cost_saved, cost_wasted = s.cost_wasted + excluded.cost_wasted
returning s.id

-- name: add_joins
-- Adds followers and replays to flights still at their generation. A flight that returns no row took them, moved on
-- or is gone; one that returns a row was locked, and is to be tried again.
with used as (
    select * from unnest(%(flight_ids)s::bigint[], %(generations)s::bigint[], %(joins)s::bigint[], %(replays)s::bigint[])
        as u (id, generation, joins, replays)
), there as materialized (
    select f.id, u.joins, u.replays
    from singleflight_flight f join used u on u.id = f.id and u.generation = f.generation
), held as materialized (
    select f.id, u.joins, u.replays
    from singleflight_flight f join used u on u.id = f.id and u.generation = f.generation
    for update of f skip locked
), added as (
    update singleflight_flight f set joins = f.joins + held.joins, replays = f.replays + held.replays
    from held where f.id = held.id
)
select there.id from there where not exists (select from held where held.id = there.id)
